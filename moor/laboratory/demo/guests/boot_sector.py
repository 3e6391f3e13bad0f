"""An image whose guests run without an operating system: a boot sector writes a line to the serial port, again and again."""

SECTOR = 512
SIZE = 1024 * 1024

# 16-bit code of x86 at 0x7c00. It writes the text at 0x7c00 + 64 to the first serial port, waits for about a tick of the BIOS's clock (by
# reading its counter at 0x46c), and begins again.
_CODE = bytes.fromhex(
    "31c0"  # xor ax, ax
    "8ed8"  # mov ds, ax
    "baf803"  # mov dx, 0x3f8
    "fc"  # cld
    "be407c"  # again: mov si, 0x7c40
    "ac"  # next: lodsb
    "84c0"  # test al, al
    "7403"  # jz wait
    "ee"  # out dx, al
    "ebf8"  # jmp next
    "b93600"  # wait: mov cx, 54 (ticks of 55 ms: about three seconds)
    "a16c04"  # tick: mov ax, [0x46c]
    "f4"  # same: hlt
    "3b066c04"  # cmp ax, [0x46c]
    "74f9"  # je same
    "e2f4"  # loop tick
    "ebe4"  # jmp again
)


def boot_sector(text: str) -> bytes:
    code = _CODE.ljust(64, b"\0") + text.encode() + b"\0"
    assert len(code) <= SECTOR - 2, f"a text of {len(text)} characters does not fit into a boot sector"
    return code.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"


def bootable_image(text: str) -> bytes:
    """A raw image that boots, and writes this text every three seconds."""
    return boot_sector(text).ljust(SIZE, b"\0")
