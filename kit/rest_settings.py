"""The settings by which a client uses the REST API of another program. The section of each such program has them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from kit.settings import Bytes, Count, Seconds


class RestSettings(Struct, frozen=True, kw_only=True):
    auth: Annotated[
        Literal["none", "basic", "keystone"],
        Meta(
            description="How the REST API is logged in to: not at all, by HTTP's basic authentication, or by Keystone's tokens."
        ),
    ] = "none"
    user: Annotated[
        str,
        Meta(description="The user that logs in to the REST API."),
    ] = ""
    password: Annotated[
        str,
        Meta(description="The password of that user."),
    ] = ""
    password_file: Annotated[
        str,
        Meta(
            description="A file with that password alone, in place of it. It is read at each login, so the password can change without a stop."
        ),
    ] = ""
    keystone_url: Annotated[
        str,
        Meta(description="With Keystone: its URL."),
    ] = ""
    user_domain: Annotated[
        str,
        Meta(description="With Keystone: the domain of the user."),
    ] = "Default"
    scope: Annotated[
        Literal["project", "system"],
        Meta(
            description="With Keystone: what the token is for, a project or the whole system. A project sees only what its role allows."
        ),
    ] = "project"
    project: Annotated[
        str,
        Meta(description="With Keystone: the project of the token."),
    ] = "service"
    project_domain: Annotated[
        str,
        Meta(description="With Keystone: the domain of the project."),
    ] = "Default"
    application_credential_id: Annotated[
        str,
        Meta(
            description="With Keystone: the id of an application credential, in place of user, password and project."
        ),
    ] = ""
    application_credential_secret: Annotated[
        str,
        Meta(description="With Keystone: the secret of the application credential."),
    ] = ""
    application_credential_secret_file: Annotated[
        str,
        Meta(
            description="With Keystone: a file with that secret alone, in place of it, read for each token."
        ),
    ] = ""
    interface: Annotated[
        Literal["public", "internal", "admin"],
        Meta(
            description="Which of the addresses in Keystone's catalogue is used, if no URL of the REST API is set."
        ),
    ] = "public"
    region: Annotated[
        str,
        Meta(description="The region of that address. Empty: any."),
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="The PEM file of the certificates by which the REST API and Keystone are verified, if not the system's."
        ),
    ] = ""
    cert_file: Annotated[
        str,
        Meta(
            description="The PEM file of the certificate by which the REST API and Keystone know the client."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(description="The PEM file of that certificate's key. Empty if cert_file has it."),
    ] = ""
    rest_connect_s_max: Annotated[
        Seconds,
        Meta(
            description="How long connecting to the REST API may take. Longer tolerates a slow network; shorter notices a dead server "
            "sooner."
        ),
    ] = 5.0
    rest_answer_s_max: Annotated[
        Seconds,
        Meta(
            description="How long an answer of the REST API may take. Longer tolerates a busy server; shorter tries again sooner."
        ),
    ] = 30.0
    rest_answer_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How large an answer of the REST API may be. Larger accepts more in one page; smaller protects memory."
        ),
    ] = 64 * 1024 * 1024
    rest_connections_max: Annotated[
        Count,
        Meta(
            description="How many connections to the REST API a process has. More makes more requests at once; fewer loads the server less."
        ),
    ] = 10
    rest_tries_max: Annotated[
        Count,
        Meta(
            description="How often a request is made before its error counts. More survives longer trouble; fewer tells of it sooner."
        ),
    ] = 5
    rest_retry_delay_s_first: Annotated[
        Seconds,
        Meta(
            description="The first pause between such tries; each further one is longer. Shorter recovers sooner; longer spares the server."
        ),
    ] = 0.2
    rest_retry_delay_s_max: Annotated[
        Seconds,
        Meta(
            description="The longest pause between such tries. Longer spares a server that is down; shorter goes on sooner when it is "
            "back."
        ),
    ] = 5.0
