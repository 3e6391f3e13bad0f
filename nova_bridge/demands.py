"""What an instance asks of its host by its flavor and its image: Nova's Flavor and ImageMeta as our flavor and image properties.

Nova's scheduler makes traits of some keys, and its computes alone read others. Both are listed here. All other keys go to the reader
of our own requests, which refuses a key that it does not know.
"""

from collections.abc import Iterator, Mapping

from engine.guests import is_host_key
from nova_bridge.envelope import Fields, RefusedError, object_in, objects_in, texts_in

REQUIRED = "required"
PROFILE, ALIAS = "accel:device_profile", "pci_passthrough:alias"
# By key: why a request is refused that has the key without the devices.
DEVICE_KEYS: Mapping[str, str] = {
    PROFILE: "no group in requested_resources says what this device profile needs",
    ALIAS: "no request in pci_requests says what this alias needs",
}
ACCELERATORS = "trait:COMPUTE_ACCELERATORS"

_FLAVOR = frozenset(
    {
        *("id", "flavorid", "name", "memory_mb", "vcpus", "root_gb", "ephemeral_gb", "swap", "extra_specs"),
        # No scheduler reads these: rights, texts and times, and weights that a hypervisor has.
        *("rxtx_factor", "vcpu_weight", "disabled", "is_public", "description", "projects"),
        *("created_at", "updated_at", "deleted_at", "deleted"),
    }
)
_IMAGE = frozenset(
    {
        *("id", "properties"),
        # The image service's, checked by Nova's API against the flavor, or read by the compute that fetches the image.
        *("name", "status", "visibility", "protected", "checksum", "owner", "size", "virtual_size"),
        *("container_format", "disk_format", "created_at", "updated_at", "tags", "direct_url"),
        *("min_ram", "min_disk"),
    }
)

# By key and value: the trait that Nova's scheduler requires.
TRAITS: Mapping[tuple[str, str], str] = {
    ("os:secure_boot", "required"): "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
    ("os_secure_boot", "required"): "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
    ("hw:maxphysaddr_mode", "passthrough"): "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
    ("hw_maxphysaddr_mode", "passthrough"): "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
    ("hw:maxphysaddr_mode", "emulate"): "COMPUTE_ADDRESS_SPACE_EMULATED",
    ("hw_maxphysaddr_mode", "emulate"): "COMPUTE_ADDRESS_SPACE_EMULATED",
    ("hw_firmware_stateless", "True"): "COMPUTE_SECURITY_STATELESS_FIRMWARE",
    ("hw:virtio_packed_ring", "true"): "COMPUTE_NET_VIRTIO_PACKED",
    ("hw_virtio_packed_ring", "True"): "COMPUTE_NET_VIRTIO_PACKED",
    ("hw:pci_numa_affinity_policy", "socket"): "COMPUTE_SOCKET_PCI_NUMA_AFFINITY",
    ("hw_pci_numa_affinity_policy", "socket"): "COMPUTE_SOCKET_PCI_NUMA_AFFINITY",
}
_NO = ("false", "False", "0", "no")
# With these values no host is worse than another.
_INDIFFERENT = frozenset(
    {
        *(("os:secure_boot", value) for value in ("optional", "disabled")),
        *(("os_secure_boot", value) for value in ("optional", "disabled")),
        *(
            (key, "False")
            for key in ("hw_firmware_stateless", "hw_mem_encryption", "hw_ephemeral_encryption")
        ),
        ("hw_virtio_packed_ring", "False"),
        *((key, value) for key in ("hw:mem_encryption", "hw:virtio_packed_ring") for value in _NO),
    }
)
# Those that isolate aggregates are here, too: without that filter no host is judged by them.
PROPERTIES_OF_COMPUTES = frozenset(
    {
        *(
            "hw_auto_disk_config",
            "hw_boot_menu",
            "hw_cpu_max_cores",
            "hw_cpu_max_sockets",
            "hw_cpu_max_threads",
        ),
        *(
            "hw_device_id",
            "hw_disk_type",
            "hw_floppy_bus",
            "hw_input_bus",
            "hw_ipxe_boot",
            "hw_pointer_model",
        ),
        *("hw_pmu", "hw_qemu_guest_agent", "hw_rescue_bus", "hw_rescue_device", "hw_rng_model"),
        *("hw_time_hpet", "hw_serial_port_count", "hw_scsi_model", "hw_video_ram", "hw_watchdog_action"),
        *(
            "hw_vif_multiqueue_enabled",
            "hw_usb_model",
            "hw_redirected_usb_ports",
            "hw_locked_memory",
            "hw_viommu_model",
        ),
        *("img_bittorrent", "img_bdm_v2", "img_cache_in_nova", "img_compression_level", "img_config_drive"),
        *("img_linked_clone", "img_mappings", "img_block_device_mapping", "img_owner_id", "img_use_agent"),
        *("img_root_device_name", "img_version", "img_signature", "img_signature_hash_method"),
        *("img_signature_certificate_uuid", "img_signature_key_type", "img_hide_hypervisor_id"),
        *("os_admin_user", "os_distro", "os_type", "os_require_quiesce", "os_skip_agent_inject_ssh"),
        "os_skip_agent_inject_files_at_boot",
    }
)


def flavor_of(flavor: Fields, *, on_volume: bool, served: frozenset[str]) -> dict[str, object]:
    """The flavor as a request of ours has it. The disk of an instance on a volume is none of the host's. The devices of the keys
    `served` are asked for by groups of their own, or are kept.
    """
    flavor.refuse_unknown(_FLAVOR)
    return {
        "name": flavor.text("name"),
        "vcpus": flavor.whole("vcpus"),
        "ram_mb": flavor.whole("memory_mb"),
        "root_gb": 0 if on_volume else flavor.whole("root_gb", 0),
        "ephemeral_gb": flavor.whole("ephemeral_gb", 0),
        "swap_mb": flavor.whole("swap", 0),
        "extra_specs": _extra_specs(flavor.object("extra_specs"), served),
    }


def _extra_specs(specs: Fields, served: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in specs.text_values().items():
        if key in DEVICE_KEYS:
            if key not in served:
                raise specs.refuse(key, DEVICE_KEYS[key])
            if key == PROFILE:
                found[ACCELERATORS] = REQUIRED
        elif trait := TRAITS.get((key, value)):
            found[f"trait:{trait}"] = REQUIRED
        elif (key, value) not in _INDIFFERENT and not is_host_key(key):
            found[key] = value
    return found


def image_of(image: Fields | None, read_keys: frozenset[str]) -> tuple[str, dict[str, str]]:
    """The id of the image, empty for a volume, and the properties by which hosts are judged. `read_keys` are those that filters
    read.
    """
    if image is None:
        return "", {}
    image.refuse_unknown(_IMAGE)
    properties = object_in(image, "properties", "ImageMetaProps")
    found = {} if properties is None else dict(_properties(properties, read_keys))
    return image.text("id", ""), found


def _properties(properties: Fields, read_keys: frozenset[str]) -> Iterator[tuple[str, str]]:
    for key, value in properties.values.items():
        if key == "traits_required":
            yield from ((f"trait:{trait}", REQUIRED) for trait in properties.texts(key))
        elif value is None or (key in PROPERTIES_OF_COMPUTES and key not in read_keys):
            continue
        elif not isinstance(value, str | int | float):
            raise RefusedError(
                properties.at(key), value, "no host can be chosen by a property that is a list"
            )
        elif trait := TRAITS.get((key, str(value))):
            yield f"trait:{trait}", REQUIRED
        elif (key, str(value)) not in _INDIFFERENT:
            yield key, str(value)


# Resources that neither flavor nor image ask for: Nova's request groups, for ports, accelerators and devices, each as a port request
# of ours. The name of a group's requester is what Nova looks for in the mappings of the answer.


# How our requests name the groups of ports among the granular groups.
PORT = "port "
# The requesters of the groups of a device profile are numbered.
OF_PROFILE = "device_profile_"
GROUPS_MAX = 16
# Port requests, each as the fields of one.
PortGroups = tuple[Mapping[str, object], ...]

_GROUP = frozenset(
    {
        *("use_same_provider", "resources", "required_traits", "forbidden_traits", "requester_id"),
        # What an earlier choice gave the group: not asked for, but told.
        "provider_uuids",
    }
)
_LEVEL = frozenset({"same_subtree"})


def groups_of(spec: Fields) -> PortGroups:
    groups = objects_in(spec, "requested_resources", "RequestGroup")
    if len(groups) > GROUPS_MAX:
        raise spec.refuse(
            "requested_resources", f"an instance has at most {GROUPS_MAX} groups beside its flavor"
        )
    return tuple(_group(each) for each in groups)


def _group(group: Fields) -> dict[str, object]:
    group.refuse_unknown(_GROUP)
    if not group.flag("use_same_provider", default=True):
        raise group.refuse("use_same_provider", "only a group that one provider serves is chosen for")
    requester = group.text("requester_id")
    if not requester or "," in requester:
        raise group.refuse("requester_id", "it must name who asks for the group, without a comma")
    resources = group.object("resources")
    amounts = {name: amount for name in resources.values if (amount := resources.whole(name))}
    if not amounts:
        raise group.refuse("resources", "a group must ask for an amount of something")
    return {
        "id": requester,
        "resources": amounts,
        "required": sorted(set(group.texts("required_traits"))),
        "forbidden": sorted(set(group.texts("forbidden_traits"))),
    }


def served_keys(spec: Fields, groups: PortGroups) -> frozenset[str]:
    """The keys of the flavor whose devices these groups ask for. Refuses a device that no group asks for.

    With PCI in placement, each device of an alias has its group, named by the request's id and a number; the device of a port has none.
    What an alias says beside a class and traits is checked by the compute alone.
    """
    names = {str(each["id"]) for each in groups}
    keys = {PROFILE} if any(name.startswith(OF_PROFILE) for name in names) else set()
    listed = object_in(spec, "pci_requests", "InstancePCIRequests")
    for request in () if listed is None else objects_in(listed, "requests", "InstancePCIRequest"):
        if request.value("alias_name") is None:
            raise request.refuse(
                "requester_id",
                "the device of a port is not in placement: only nova-scheduler can choose for it",
            )
        id_, count = request.text("request_id"), request.whole("count")
        for number in range(count):
            if f"{id_}-{number}" not in names:
                reason = (
                    f"no group in requested_resources asks for device {number + 1} of {count}: devices are chosen by placement alone, with "
                    "[filter_scheduler] pci_in_placement of Nova's services and [pci] report_in_placement of its computes"
                )
                raise request.refuse("alias_name", reason)
        keys.add(ALIAS)
    return frozenset(keys)


def subtrees_of(spec: Fields, groups: PortGroups) -> tuple[tuple[str, ...], ...]:
    """The suffixes of groups whose providers must be in one subtree, for each such wish."""
    level = object_in(spec, "request_level_params", "RequestLevelParams")
    if level is None:
        return ()
    level.refuse_unknown(_LEVEL)
    known = {each["id"] for each in groups}
    found: set[tuple[str, ...]] = set()
    for number, wish in enumerate(level.list("same_subtree")):
        at = f"{level.at('same_subtree')}[{number}]"
        if not isinstance(wish, list):
            raise RefusedError(at, wish, "it must be a list of groups")
        for name in (names := texts_in(wish, at)):
            if name not in known:
                raise RefusedError(at, name, "no group of requested_resources has this requester")
        if names:
            found.add(tuple(sorted({f"{PORT}{name}" for name in names})))
    return tuple(sorted(found))
