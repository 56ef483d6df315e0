"""Every setting and every limit of the server, with its reason; those of the audit log are in
`audit_settings`, those of the store in `store_settings`.

A field is one line: name, type, kind with its range, default. The paragraph under it says what it is for and where the
number comes from; the reference page is made from these paragraphs. Durations are microseconds here and `5s` in a
file; sizes are bytes here and `64MiB` in a file.

To add a setting: add the field with its paragraph, run `make docs`. The environment variable, `config show` and the
reference follow by themselves; a kind with `flag=` makes a flag of `holdfast serve`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.config.audit_settings import AuditSettings
from holdfast.config.console_settings import ConsoleSettings
from holdfast.config.grpc_settings import GrpcSettings
from holdfast.config.kinds import (
    RATE_BYTES_MAX,
    RATE_MESSAGES_MAX,
    Address,
    Choice,
    Count,
    Duration,
    KeyAddress,
    Location,
    Name,
    Networks,
    Rate,
    Rates,
    Receivers,
    Secret,
    Size,
    Switch,
    Text,
)
from holdfast.config.secret import SecretText
from holdfast.config.store_settings import StoreSettings
from holdfast.config.tracing_settings import TracingSettings
from holdfast.units import DAY, GIB, HOUR, KIB, MIB, MILLISECOND, MINUTE, SECOND, TIB


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is and where it keeps its data."""

    node_id: Annotated[int, Count(0, 1023, flag="--node-id")] = 0
    """The number of this node, unique among nodes that share queues or a lake. It is 10 of the 63 bits of every
    message id, so there can be 1024 nodes. Two nodes with the same number would assign the same ids. On embedded
    storage a node is one cell, and this is the cell's number."""

    data_dir: Annotated[Path, Location(flag="--data-dir")] = Path("data")
    """The directory that holds everything this node must not lose: the store and the journal's lake. It is made if it
    is missing, and belongs to one process at a time."""

    namespace: Annotated[str, Name()] = "default"
    """The namespace of callers whose credentials name none."""

    max_loop_lag: Annotated[int, Duration(10 * MILLISECOND, 10 * MINUTE)] = 2 * SECOND
    """`/readyz` says no while the event loop is later than this. At 2 s callers already run into their timeouts: no
    more of them should be sent here."""

    shutdown_timeout: Annotated[int, Duration(0, 10 * MINUTE)] = 20 * SECOND
    """How long a graceful stop may take before the node stops immediately. 20 s leaves room inside the 30 s that
    Kubernetes waits between SIGTERM and SIGKILL. Whatever hangs (a disk, a thread), the process has ended 5 s later.
    Nothing confirmed is lost either way; leases that were not released run until their deadline."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues may exist."""

    auto_create: Annotated[bool, Switch()] = True
    """Whether a queue appears, with defaults, when it is first used. Switch it off where a misspelt name must be an
    error. Dead letter queues appear either way: a dead letter must have somewhere to go."""

    max_queues: Annotated[int, Count(1, 1_000_000)] = 20_000
    """How many queues a node holds, so that a client that makes up names cannot fill the memory. A queue at rest costs
    its configuration and the heads of its shards: with the default 10 partitions and one group about 40 KiB, so 10,000
    such queues are 400 MiB; a queue with a single partition costs a tenth. A namespace may have half of them
    (quotas.queues)."""

    max_groups_per_queue: Annotated[int, Count(1, 1024)] = 64
    """How many groups may subscribe to one queue. Every message is settled once for each group, and a message that some
    groups have settled carries one bit for each: 64 groups are one machine word."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much the node accepts at a time. Above a limit it refuses a request with a retryable error."""

    inbox_messages: Annotated[int, Count(1, 10_000_000)] = 100_000
    """Messages and settlements that wait for their commit, over all callers. Past it new ones are refused as
    `overloaded` instead of waiting in memory. At 50,000 a second 100,000 are a wait of 2 s, longer than a caller
    should be left."""

    inbox_bytes: Annotated[int, Size(MIB, 64 * GIB)] = 64 * MIB
    """Payload bytes that wait for their commit, over all callers: the same limit for large messages. 100,000
    messages of 1 MiB would be 100 GiB; 64 MiB are 64 of the largest or 65,536 of 1 KiB."""

    enqueue_max: Annotated[int, Count(1, 100_000)] = 10_000
    """Messages in one enqueue request. At 256 bytes 10,000 are 2.5 MiB; a larger request gains nothing, since the
    cost of the sync is shared by then, and holds up all other requests while it is processed."""

    settle_max: Annotated[int, Count(1, 100_000)] = 10_000
    """Settlements in one settle request, for the same reason."""

    lease_max: Annotated[int, Count(1, 10_000)] = 1_000
    """Messages in one lease request. All of them must be worked on before the lease ends: 1,000 in the default 30 s
    are 30 ms each. A faster consumer asks more often."""

    lease_bytes: Annotated[int, Size(MIB, GIB)] = 32 * MIB
    """Payload bytes in one lease's answer, and those that a consumer to whom messages are pushed may have unsettled; at
    least one message is always given. 1,000 messages of 1 MiB would be 1 GiB in one answer."""

    read_max: Annotated[int, Count(1, 100_000)] = 10_000
    """Messages in one read of a cursor group, over all partitions it asks for. Reading 10,000 takes about 30 ms, in
    which no other request runs; Spark reads as many at a time."""

    read_bytes: Annotated[int, Size(MIB, GIB)] = 32 * MIB
    """Payload bytes in one read of a cursor group, for the same reason as lease_bytes."""

    state_bytes: Annotated[int, Size(1, 64 * MIB)] = MIB
    """The workflow state that a consumer keeps beside one delivery. It is written again with every change and
    carried by dead letters; 1 MiB is as much as a message may have by default."""

    max_wait: Annotated[int, Duration(0, HOUR)] = 15 * MINUTE
    """The longest a lease request may wait for a message. A waiting request costs a few hundred bytes and no work, but
    proxies between drop silent connections, most after 15 minutes at the latest."""

    max_waiters: Annotated[int, Count(1, 1_000_000)] = 100_000
    """Lease requests that wait at the same time, over all queues. At about 1 KiB each 100,000 are 100 MiB."""

    max_lease_timeout: Annotated[int, Duration(SECOND, 30 * DAY)] = 12 * HOUR
    """The longest lease that can be asked for or extended to. Until it ends nobody else can work on the message, so it
    bounds how long a vanished consumer can hold one back."""

    max_redrives: Annotated[int, Count(1, 1_000)] = 16
    """Redrives of dead letters under way at the same time. Each moves up to 256 dead letters or about 8 MiB in a
    turn of the loop, and remembers at most 4,096 of a partition to put them in order."""

    hot_cache_bytes: Annotated[int, Size(0, 64 * GIB)] = 64 * MIB
    """Payloads kept in memory after they were stored, so that a consumer who keeps up is served without a read from
    the store. Over all queues. When it is full, new messages are not cached until cached ones are leased or removed."""

    remembered_settlements: Annotated[int, Count(1_000, 100_000_000)] = 250_000
    """Leases of which the node remembers how they ended, over all queues, so that settling again is answered as the
    first time. About 170 bytes each: 250,000 are 40 MiB. Past it each group and partition keeps an equal share, its
    newest ones; a settlement that is repeated after that is refused as `lease_lost`."""

    settled_cache: Annotated[int, Count(1_000, 100_000_000)] = 250_000
    """Messages of queues with several groups for which the node caches which groups have settled them, over all
    queues, instead of reading it from the store. About 170 bytes each: 250,000 are 40 MiB."""

    window_places: Annotated[int, Count(10_000, 100_000_000)] = 200_000
    """Messages whose place in the order of delivery is in memory, over all groups and partitions: up to 2,048 of each
    priority that a group leases from. About 150 bytes each: 200,000 are 29 MiB. Past it each group of a partition
    keeps an equal share, and the rest is read again when it is its turn."""


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are staged and published together."""

    timeout: Annotated[int, Duration(SECOND, 30 * DAY)] = HOUR
    """A transaction into which nothing was staged for so long, and which was not published, is removed with what it
    holds. An hour is longer than any producer should pause, and short enough that forgotten ones do not fill the
    disk."""

    max_messages: Annotated[int, Count(1, 1_000_000_000)] = 10_000_000
    """Messages one transaction may hold, all attempts of its parts together. They lie on disk; 10,000,000 of 1 KiB are
    10 GiB."""

    max_bytes: Annotated[int, Size(MIB, TIB)] = 16 * GIB
    """Payload bytes one transaction may hold: the same limit for large messages. Until it is published and its messages
    are settled, all of it is on disk."""

    max_open: Annotated[int, Count(1, 100_000)] = 1_000
    """Transactions of one namespace that are open at the same time. Each costs about 1 KiB of memory, and a streaming
    query has one at a time."""

    max_parts: Annotated[int, Count(1, 10_000_000)] = 100_000
    """Parts, with their attempts, of all open transactions of the node. Each keeps counts in memory of what it has
    staged for which partition, about 1 KiB: 100,000 are 100 MiB. A job has as many as it has tasks."""

    remember: Annotated[int, Duration(SECOND, 3650 * DAY)] = 7 * DAY
    """How long it is remembered that a transaction was published. Published again within this time, it is answered as
    the first time; after it, its messages would be taken for new ones. A job that crashed must be restarted within it:
    seven days outlast a long weekend."""

    max_remembered: Annotated[int, Count(1, 100_000_000)] = 100_000
    """Published transactions that are remembered for each identity of a namespace; its oldest is forgotten for a new
    one, and nobody else's. Each is about 250 bytes on disk. With a batch every 6 s 100,000 are seven days."""

    step_messages: Annotated[int, Count(1, 100_000)] = 4_000
    """Messages that one step of publishing moves into their queues. Up to so many become visible in one and the same
    commit, and no other request runs meanwhile: 4,000 take about 25 ms. Raise it where larger transactions must become
    visible as a whole and longer pauses are acceptable."""

    step_bytes: Annotated[int, Size(64 * KIB, GIB)] = 8 * MIB
    """Payload bytes that one step of publishing moves: the same bound for large messages, all of them in memory."""


class RedriveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Redrives of dead letters under an audit id."""

    remember: Annotated[int, Duration(SECOND, 3650 * DAY)] = 90 * DAY
    """How long after its last change a redrive is remembered, with each dead letter, and can be continued or undone.
    Each dead letter costs about 60 bytes on disk, and its payload where the redrive changed it. 90 days cover a
    quarter; the lake keeps what is known of redrives for as long as it is kept."""

    max_remembered: Annotated[int, Count(1, 100_000)] = 1_000
    """Redrives that are remembered; the one that was changed longest ago is forgotten for a new one. Their heads are in
    memory, at most 16 KiB each, mostly less than 1 KiB."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Consumers to whom messages are pushed."""

    heartbeat_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = 30 * SECOND
    """A member that sends no heartbeat for so long is removed from its group, and its partitions are assigned to
    others. A client should send three in that time, so that one lost heartbeat costs nothing."""

    max_members_per_group: Annotated[int, Count(1, 100_000)] = 10_000
    """Members of one group. The assignment is computed again on every join and leave, in time that grows with the
    number of members."""

    max_prefetch: Annotated[int, Count(1, 100_000)] = 1_000
    """Deliveries one member may have in flight, whatever it asks for. All of them count against their lease while they
    wait in its buffer."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's way from the store into Parquet segments."""

    enabled: Annotated[bool, Switch()] = True
    """Whether the exporter runs. Off, journal records are dropped from the store once nothing needs them, and there is
    no history: no reports, no replay, no proof. A queue can leave the journal on its own (`journal`)."""

    directory: Annotated[Path, Location()] = Path("lake")
    """Where segments are written, relative to data_dir. An absolute path puts the lake on another disk."""

    segment_bytes: Annotated[int, Size(64 * KIB, 4 * GIB)] = 64 * MIB
    """A segment is closed when its records reach this size, before compression. Larger files are what Spark reads best;
    a quarter of one is in memory while it is written."""

    segment_age: Annotated[int, Duration(100 * MILLISECOND, DAY)] = 60 * SECOND
    """A segment is closed when its oldest record is this old, so that the lake is never further behind. At 60 s a day
    has at most 1,440 segments from one node."""

    retention: Annotated[int, Duration(0, 10_000 * DAY)] = 0
    """Segments that were written longer ago are removed; 0: they stay for ever. The manifest says up to where, so that
    what is left is still proved. Segments that the tables of LAKE/tables lack stay, and those from the oldest message
    that is live on: both are needed. Looked at once a minute."""

    retention_bytes: Annotated[int, Size(0, 1024 * TIB)] = 0
    """If the segments together are larger, the oldest are removed, as by `retention`; 0: however large they are. Tables
    are not counted: `holdfast pipeline build --keep` bounds them."""

    retention_force: Annotated[bool, Switch()] = False
    """Remove also segments that are still needed. Tables that lack them must be rebuilt, and then have no more than is
    left; of messages that were live then nothing is proved."""

    max_behind: Annotated[int, Count(1, 1_000_000_000_000)] = 10_000_000
    """`/readyz` says no while more rows than this wait for their export. They are in the store, which grows by them:
    10 million are about 2 GiB and, at 30,000 a second, five minutes in which the lake could not be written. While
    less than a quarter of it waits, the exporter pauses while clients write, three times as long as it works."""

    conversion: Annotated[str, Choice(("process", "thread"))] = "process"
    """Where rows become columns. In a process of its own it takes no time from the node's loop; the process is started
    when there is something to export, which takes 0.3 s of a processor, has 50 to 130 MiB of memory, and ends when
    nothing was exported for 10 s. In a thread it takes the loop's time, 5 us a row, and 35 MiB of memory that stay."""

    conversion_timeout: Annotated[int, Duration(100 * MILLISECOND, DAY)] = 10 * MINUTE
    """A process that works longer than this on one segment hangs: it is killed and the segment is started again. The
    largest that can be configured takes a minute or two; the default takes seconds. Nothing is lost for it: rows
    wait in the store."""

    stop_timeout: Annotated[int, Duration(0, 10 * MINUTE)] = 5 * SECOND
    """How long a node that stops waits for the segment that is being written. Then the process that converts it is
    killed, a thread that a hanging disk keeps is left behind, and the next start writes the segment. 5 s are enough for
    a full one and leave the rest of node.shutdown_timeout to connections."""

    max_reads: Annotated[int, Count(1, 1_000)] = 8
    """Histories of messages that are read from the lake at the same time; further ones are refused as
    `lake_unreadable`. Each has a thread, and one that a hanging disk keeps counts until the disk answers: 8
    are enough for people who look, and few enough to be left behind."""

    read_timeout: Annotated[int, Duration(100 * MILLISECOND, 10 * MINUTE)] = 30 * SECOND
    """How long a caller waits for a history before its request fails as `lake_unreadable`. The 2,000 segments that
    are looked at, at most, take some seconds on a local disk."""

    segment_rows: Annotated[int, Count(1, 10_000_000)] = 500_000
    """A segment is closed at this many records, however small they are. Of these 131,072 are in memory while they are
    written, about 30 MiB."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to a queue's `dlq.alert_webhook`. They run beside the queue and never hold it up."""

    allow: Annotated[tuple[str, ...], Receivers(1_000)] = ("public", "private")
    """Who may be called: `public` and `private` addresses, networks (`10.1.0.0/16`), and hosts by name
    (`alerts.example`, `*.example`). Who may configure a queue chooses its webhook, so this decides what they can make
    the server reach. Loopback, link-local and other special addresses, as those of a cloud's metadata, are never called
    unless their network or host is named. A host is looked up once a call, and the address that was checked is the one
    that is called."""

    timeout: Annotated[int, Duration(100 * MILLISECOND, 5 * MINUTE)] = 10 * SECOND
    """How long one call may take, from connecting to the end of the answer."""

    attempts: Annotated[int, Count(1, 100)] = 5
    """Calls for one dead letter before the broker gives up and logs it. With the default backoff the fifth comes after
    1 + 2 + 4 + 8 = 15 s."""

    backoff: Annotated[int, Duration(10 * MILLISECOND, HOUR)] = SECOND
    """The pause before the second attempt; each further one is twice as long."""

    max_backoff: Annotated[int, Duration(10 * MILLISECOND, DAY)] = MINUTE
    """The longest pause between two attempts, so that a receiver that was down for long is called soon after it is
    back."""

    queue_size: Annotated[int, Count(1, 1_000_000)] = 1_000
    """Calls that wait. Past it the newest is dropped and counted: a receiver that is down must not cost memory, and the
    dead letters themselves are safe in their queue."""

    concurrency: Annotated[int, Count(1, 1_000)] = 8
    """Calls under way at the same time. With answers in 100 ms 8 are 80 calls a second."""


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication. With no users file, no key file, no secret and no identity provider there are no credentials:
    every client may do everything, and the server listens on loopback only."""

    insecure: Annotated[bool, Switch(flag="--insecure")] = False
    """Listen on addresses other than loopback although no credentials are configured. Everybody who can reach the
    server may then read and change everything: only for networks where that is meant."""

    users_file: Annotated[Path | None, Location(optional=True)] = None
    """Users with their passwords (argon2id), certificate subjects, namespaces and scopes. `holdfast user` writes it.
    A change is seen without a restart."""

    key_file: Annotated[Path | None, Location(optional=True)] = None
    """The keys that tokens (JWT) are checked with: a PEM public key or certificate, a JWK, or a JWKS with several.
    `holdfast token key` makes one. A change is seen without a restart; tokens of a key that is gone are refused."""

    revoked_file: Annotated[Path | None, Location(optional=True)] = None
    """Tokens that were taken back before their end, by their `jti`. `holdfast token revoke` writes it; it must exist,
    and may be empty. A change is seen without a restart, and connections made with such a token are ended."""

    revoked_max: Annotated[int, Count(1, 10_000_000)] = 100_000
    """Tokens in the revoked file: each takes about 200 bytes of memory. Those that have ended are left out of it."""

    token_secret: Annotated[SecretText, Secret(32, 4096)] = SecretText("")
    """A secret that HS256 tokens are checked with, for places where a variable is easier to give than a file. 32 bytes
    are what HS256 is worth. It is never shown."""

    oidc_issuer: Annotated[str, KeyAddress(query=False)] = ""
    """The identity provider (OpenID Connect) whose tokens are taken beside those of the key file, as written in their
    `iss`. The server fetches its public keys, which `/.well-known/openid-configuration` below this URL leads to.
    Redirects are not followed; authorities of certificates are the usual ones, or those in the file `SSL_CERT_FILE`."""

    jwks_url: Annotated[str, KeyAddress(query=True)] = ""
    """Where the keys (JWKS) of the identity provider are, if it does not say so itself. Its tokens must name
    `auth.oidc_issuer`, or if that is not set `auth.token_issuer`, if that is."""

    oidc_refresh: Annotated[int, Duration(MINUTE, DAY)] = HOUR
    """How often the provider's keys are fetched again; more often if its `Cache-Control: max-age` says so, down to a
    minute. A key that is gone is refused then. An unknown `kid` has them fetched immediately, at most every 30 s."""

    oidc_stale: Annotated[int, Duration(MINUTE, 30 * DAY)] = DAY
    """How long the keys fetched last are used while the provider cannot be reached; then its tokens are refused. At
    least `auth.oidc_refresh`. Short is safe against keys that were withdrawn, long against outages."""

    token_issuer: Annotated[str, Text(255)] = ""
    """The `iss` that tokens not of `auth.oidc_issuer` must carry. None: every issuer that has the key is trusted."""

    token_audience: Annotated[str, Text(255)] = ""
    """The `aud` that tokens must carry. None: tokens that name an audience are refused, since they are meant for
    somebody else."""

    token_leeway: Annotated[int, Duration(0, 5 * MINUTE)] = 10 * SECOND
    """How far the clocks of issuer and server may differ when `exp` and `nbf` are checked. Machines that keep
    their time by NTP are within a second."""

    token_expiry_required: Annotated[bool, Switch()] = True
    """Whether a token must have an end (`exp`). One without cannot be taken back but by changing the key."""

    token_lifetime_max: Annotated[int, Duration(MINUTE, 3_650 * DAY)] = 366 * DAY
    """The longest time from `iat` (or from now, if a token has none) to `exp`. A token that leaks is of use until its
    end; days are better than a year."""

    token_bytes_max: Annotated[int, Size(256, 64 * KIB)] = 8 * KIB
    """Longer tokens are refused unread. 8 KiB is what most servers take as a header; 100 scopes need about half."""

    scopes_max: Annotated[int, Count(1, 10_000)] = 100
    """Scopes of one credential. A question not asked before looks at each of them: 100 are about 50 µs."""

    keys_max: Annotated[int, Count(1, 1_000)] = 32
    """Keys in the file, and of the provider. A token without `kid` is tried with each that fits: 32 take some 3 ms."""

    users_max: Annotated[int, Count(1, 1_000_000)] = 10_000
    """Users in the users file. It is read whole and kept in memory, about 10 MiB for 10,000; reading them again
    after a change takes some 70 ms, in which the node does nothing else."""

    reload_interval: Annotated[int, Duration(0, HOUR)] = SECOND
    """How often, at most, the files are looked at for a change; it costs one `stat` each. Until then what was changed
    still holds."""

    token_cache: Annotated[int, Count(0, 1_000_000)] = 10_000
    """Checked tokens that are remembered until they expire or the keys change, so that a signature is checked once and
    not for each request. At about 1 KiB each 10,000 are 10 MiB."""

    password_cache: Annotated[int, Count(0, 1_000_000)] = 10_000
    """Checked passwords that are remembered, as a keyed hash, so that a thousand clients of one user that come back
    after a restart cost one argon2 and not a thousand."""

    password_cache_age: Annotated[int, Duration(0, HOUR)] = 5 * MINUTE
    """How long a checked password is remembered. It is forgotten immediately when the users file changes."""

    password_bytes_max: Annotated[int, Size(16, 64 * KIB)] = KIB
    """Longer passwords are refused unread: hashing them would be work that a stranger chooses."""

    hash_memory: Annotated[int, Size(8 * KIB, GIB)] = 19 * MIB
    """Memory of one argon2id hash, for passwords set from now on. 19 MiB with 2 passes is OWASP's advice; it takes
    some 30 ms, here and for an attacker."""

    hash_passes: Annotated[int, Count(1, 100)] = 2
    """Passes of argon2id over its memory, for passwords set from now on."""

    login_concurrency: Annotated[int, Count(1, 64)] = 2
    """Passwords checked at the same time, each on a thread and with its own memory: 2 are 38 MiB and leave the loop a
    core on most machines."""

    login_waiting: Annotated[int, Count(1, 100_000)] = 256
    """Logins that wait for a check. At 30 ms and 2 at a time 256 wait up to 4 s; more are refused, with the time
    after which to try again."""

    login_failures: Annotated[int, Count(1, 10_000)] = 10
    """Wrong passwords in a row from one address, or for one user, before further ones are refused unchecked."""

    login_recovery: Annotated[int, Duration(MILLISECOND, DAY)] = 10 * SECOND
    """After so long one more attempt is allowed. With 10 s an address has 8,640 guesses a day, far from enough for a
    password that is not in a list."""

    trusted_proxies: Annotated[tuple[str, ...], Networks(1_000)] = ()
    """Addresses and networks of load balancers and proxies in front of the server. Only of them is it believed whom a
    request or connection is from: by `X-Forwarded-For` over HTTP, and by the PROXY protocol where `http.proxy_protocol`
    or `mqtt.proxy_protocol` is on. Without it all callers behind a proxy are throttled as one."""

    login_tracked: Annotated[int, Count(100, 1_000_000)] = 10_000
    """Addresses, users and pairs of both whose failures are remembered, each. Past it the one least recently seen is
    forgotten, so that memory stays bounded: 10,000 of each are some 6 MiB."""


class RateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a namespace may send, over all fronts: a token bucket for messages and one for bytes. A batch is taken
    whole if the bucket is not empty, and what it takes too much is owed: the long-run rate holds for any batch size."""

    messages_per_second: Annotated[int, Count(0, RATE_MESSAGES_MAX)] = 0
    """Messages a second of each namespace that has no rate of its own. 0 is no limit."""

    bytes_per_second: Annotated[int, Size(0, RATE_BYTES_MAX)] = 0
    """Payload bytes a second of each namespace that has no rate of its own. 0 is no limit."""

    burst: Annotated[int, Duration(10 * MILLISECOND, HOUR)] = 2 * SECOND
    """How much may come together after a pause, as the time in which the rate would allow it: at 1,000 messages a
    second and 2 s that is 2,000 messages."""

    namespaces: Annotated[tuple[Rate, ...], Rates(1_000)] = ()
    """Namespaces with a rate of their own: `acme=5000/10MiB, tests=100/1MiB` is messages and bytes a second; 0 is no
    limit."""

    namespaces_tracked: Annotated[int, Count(10, 1_000_000)] = 10_000
    """Namespaces whose buckets are kept. Past it the one least recently used starts again with a full one; at 200
    bytes each 10,000 are 2 MiB."""


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one namespace may have, unless it has a quota of its own (`holdfast quota set`), so that no tenant can
    take what others need. 0 is no limit. Where no credentials are configured all callers are one, and nobody else is to
    be protected: of connections, long polls, requests, PUBLISHes and bytes only a quota of its own holds there."""

    queues: Annotated[int, Count(0, 1_000_000)] = 10_000
    """Queues. A queue at rest costs about 10 KiB; half of queues.max_queues, so that no namespace can have all."""

    partitions: Annotated[int, Count(0, 10_000_000)] = 100_000
    """Partitions of all queues together: 10,000 queues with the default of 10."""

    groups: Annotated[int, Count(0, 10_000_000)] = 50_000
    """Groups of all queues together. Each has a place in every partition of its queue."""

    stored_bytes: Annotated[int, Size(0, 1024 * TIB)] = 256 * GIB
    """Payload bytes that queues hold. Enqueues beyond it are refused; dead letters, redrives and what a transaction
    publishes are not. 256 GiB are what 20 queues hold that are full of messages of 128 KiB."""

    staged_bytes: Annotated[int, Size(0, 1024 * TIB)] = 64 * GIB
    """Payload bytes that open transactions hold: four of the largest."""

    open_transactions: Annotated[int, Count(0, 100_000)] = 1_000
    """Open transactions. Each costs about 1 KiB of memory."""

    remembered_transactions: Annotated[int, Count(0, 100_000_000)] = 0
    """Published transactions of one principal that are remembered; the oldest is forgotten for a new one. 0:
    transactions.max_remembered."""

    redrives: Annotated[int, Count(0, 1_000)] = 8
    """Redrives under way at the same time: half of limits.max_redrives, so that no namespace can have all."""

    webhooks: Annotated[int, Count(0, 1_000_000)] = 100
    """Queues with `dlq.alert_webhook`. All share the connections and the waiting line for webhooks."""

    schedules: Annotated[int, Count(0, 10_000)] = 1_000
    """Schedules. They are in memory, with messages of up to 16 KiB: 1,000 are 16 MiB at the most."""

    long_polls: Annotated[int, Count(0, 1_000_000)] = 20_000
    """Long polls, streams and requests that wait for their reply, at the same time. At about 1 KiB each 20,000 are 20
    MiB; a fifth of limits.max_waiters."""

    connections: Annotated[int, Count(0, 1_000_000)] = 5_000
    """Connections of MQTT and HTTP clients that have shown who they are, and those of gRPC clients with calls: half of
    what each front takes."""

    sessions: Annotated[int, Count(0, 10_000_000)] = 50_000
    """MQTT sessions, of connected clients and of those that are away: half of mqtt.max_sessions."""

    subscriptions: Annotated[int, Count(0, 10_000_000)] = 200_000
    """MQTT subscriptions of all sessions together. One costs about a kilobyte."""

    retained_messages: Annotated[int, Count(0, 10_000_000)] = 50_000
    """Retained MQTT messages; they are kept in memory. mqtt.max_retained holds too."""

    retained_bytes: Annotated[int, Size(0, TIB)] = 128 * MIB
    """The same, by size. mqtt.max_retained_bytes holds too."""

    requests_per_second: Annotated[int, Count(0, 1_000_000_000)] = 20_000
    """HTTP requests a second, with a burst of one second. A node answers some 20,000 single requests a second: who
    needs more sends several messages in one. MQTT PUBLISHes that are read together count as one request."""

    publishes_per_second: Annotated[int, Count(0, 1_000_000_000)] = 200_000
    """MQTT PUBLISHes a second, each of them, with a burst of one second. A node takes some 250,000 if they come many at
    a time; one that comes alone costs as much as a request, and counts as one too."""

    bytes_per_second: Annotated[int, Size(0, TIB)] = 256 * MIB
    """Bytes of HTTP bodies and MQTT payloads a second, with a burst of one second."""

    principal_percent: Annotated[int, Count(1, 100)] = 80
    """How much of its namespace's connections, long polls, open transactions with their bytes, and requests, PUBLISHes
    and bytes a second one principal may have, in percent: the rest is for others, and for those who look after it. Of
    what belongs to the namespace and not to a principal (queues, groups, stored bytes, redrives) there is no share: who
    administers it sees and deletes it."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of all fronts. Without a certificate there is none."""

    certificate_file: Annotated[Path | None, Location(optional=True, flag="--tls-certificate")] = None
    """The server's certificate in PEM, followed by those between it and the root. A change is used for new connections
    without a restart."""

    key_file: Annotated[Path | None, Location(optional=True, flag="--tls-key")] = None
    """The certificate's private key in PEM, without a passphrase. None: it is in the certificate's file."""

    client_ca_file: Annotated[Path | None, Location(optional=True)] = None
    """Certificates in PEM of the authorities whose client certificates are accepted."""

    client_certificates: Annotated[str, Choice(("none", "optional", "required"))] = "none"
    """Whether clients are asked for a certificate: `optional` lets those without one use a password or a token,
    `required` ends the handshake. The users file says who a subject is."""

    minimum_version: Annotated[str, Choice(("1.2", "1.3"))] = "1.2"
    """The oldest TLS version that is spoken. 1.0 and 1.1 are broken and cannot be chosen."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP API."""

    enabled: Annotated[bool, Switch()] = True
    """Whether the HTTP API is served. Off, there are no metrics and no health checks either."""

    listen: Annotated[str, Address(flag="--http")] = "127.0.0.1:8080"
    """The address the HTTP API listens on. Port 0 takes any free one, which the log then names."""

    max_request_bytes: Annotated[int, Size(KIB, 4 * GIB)] = 64 * MIB
    """The largest body of one request. It is held in memory until its messages are stored: 64 MiB are 10,000 messages
    of 6.5 KiB, and as much as limits.inbox_bytes takes together."""

    max_buffered_bytes: Annotated[int, Size(KIB, 64 * GIB)] = 256 * MIB
    """Bodies that are being received at the same time, over all requests. Past it further ones are refused as
    `overloaded`, so that many slow uploads cannot fill the memory: 256 MiB are four of the largest."""

    max_header_bytes: Annotated[int, Size(KIB, 16 * MIB)] = 64 * KIB
    """The request line and headers of one request. A token is 1 to 8 KiB; a message's properties in headers are at most
    64 KiB."""

    header_timeout: Annotated[int, Duration(100 * MILLISECOND, 10 * MINUTE)] = 10 * SECOND
    """From the first byte of a request, or the opening of a connection, to the end of its headers; and, before that,
    for the handshake of TLS. A client that sends one byte now and then does not hold a connection for ever."""

    body_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = MINUTE
    """How long a request's body may take to arrive. 64 MiB in 60 s are 1.1 MiB a second."""

    write_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = MINUTE
    """How long a client may leave a part of its answer unread before the connection is closed and what was leased for
    it is released."""

    proxy_protocol: Annotated[bool, Switch()] = False
    """Whether connections from `auth.trusted_proxies` begin with a header of the PROXY protocol (version 1 or 2), which
    says whom they are from. Then one without it is closed. Connections from other addresses have none."""

    keep_alive: Annotated[int, Duration(SECOND, HOUR)] = 75 * SECOND
    """How long an idle connection is kept. Proxies in front keep theirs for 60 s by default and must be the first to
    close, else they send into a connection that is just being closed."""

    max_connections: Annotated[int, Count(1, 1_000_000)] = 10_000
    """Connections at the same time. Each costs a file descriptor and about 20 KiB: 10,000 are 200 MiB. Further ones
    are closed immediately."""

    max_unauthenticated: Annotated[int, Count(1, 1_000_000)] = 500
    """Connections whose caller has not shown a valid credential yet. Past it the oldest of them is closed for a new
    one, so that strangers never keep users out. Each can make the server keep max_header_bytes and 64 KiB of a body:
    500 are 64 MiB at the worst."""

    max_concurrency: Annotated[int, Count(1, 1_000_000)] = 1_000
    """Requests that are being worked on at the same time, not counting those that only wait (long polls, streams). Past
    it a request is refused as `overloaded`. At 10 ms each 1,000 are 100,000 a second, more than a node can answer."""

    max_streams: Annotated[int, Count(1, 1_000_000)] = 5_000
    """Streaming consumers at the same time. Each is a member of its group and may have stream_bytes of deliveries in
    memory."""

    stream_bytes: Annotated[int, Size(1, GIB)] = 4 * MIB
    """Payload bytes that a stream may have unsettled: past it no further deliveries are sent, whatever its credit, but
    one is always. A client that does not read keeps as much in memory: a thousand of them 4 GiB at the worst."""

    metrics_queues: Annotated[int, Count(0, 1_000_000)] = 1_000
    """With more queues than this `/metrics` has series for the whole node only, unless asked with `?queues=all`. A
    queue has about 50 series, and Prometheus keeps each of them in memory: 1,000 queues are 50,000."""

    heartbeat: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = 15 * SECOND
    """A stream on which nothing else is sent carries a heartbeat this often, so that proxies keep it open and a client
    that is gone is noticed. Most proxies give up after 30 to 60 s of silence."""


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The MQTT broker."""

    enabled: Annotated[bool, Switch()] = True
    """Whether MQTT is served. Off, its ports are not opened, nor `/mqtt` on the HTTP port."""

    listen: Annotated[str, Address(flag="--mqtt")] = "127.0.0.1:1883"
    """The address for MQTT over plain TCP. Port 0 takes any free one, which the log then names."""

    tls_listen: Annotated[str, Address(flag="--mqtts", optional=True)] = ""
    """The address for MQTT over TLS, usually port 8883; needs `tls.certificate_file`. Empty: none."""

    websocket: Annotated[bool, Switch()] = True
    """Whether the HTTP server also takes MQTT over WebSocket, at `/mqtt`."""

    queues: Annotated[bool, Switch()] = True
    """Whether topics below `$queue/` and `$admin/` are queues. Off, this is an ordinary MQTT broker."""

    prefetch: Annotated[int, Count(1, 100_000)] = 10
    """Deliveries a consumer of a queue has in flight if it does not say (`prefetch`). All of them are under their lease
    while they wait in the client: with 30 s leases 10 leave 3 s for each, worked off one after another."""

    stats_interval: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = 5 * SECOND
    """How often subscribers of `$admin/queue/<name>/stats` are sent the stats."""

    system_interval: Annotated[int, Duration(SECOND, HOUR, or_zero=True)] = 10 * SECOND
    """How often subscribers of `$SYS/#` are sent what has changed there; 0: there are no such topics. They are about
    the whole server, so a client needs the scope `node`. Nothing is read while nobody subscribes."""

    max_connections: Annotated[int, Count(1, 1_000_000)] = 10_000
    """Clients at the same time. Each costs a file descriptor and some 10 KiB; past it a CONNECT is answered with
    `server busy`."""

    max_unauthenticated: Annotated[int, Count(1, 1_000_000)] = 500
    """Connections whose CONNECT was not accepted yet, over TCP, TLS and WebSocket. Past it the oldest of them is closed
    for a new one, so that strangers never keep users out. Each can make the server keep max_connect_bytes: 500 are 32
    MiB."""

    max_sessions: Annotated[int, Count(1, 10_000_000)] = 100_000
    """Sessions, of connected clients and of disconnected clients whose sessions are kept. Each costs a few kilobytes
    in memory and on disk, beside what waits in it; a client that makes up identifiers must not fill either. Past it a
    client without a session is answered with `quota exceeded`."""

    connect_timeout: Annotated[int, Duration(100 * MILLISECOND, 10 * MINUTE)] = 10 * SECOND
    """The longest time from the opening of a connection to its CONNECT: an unauthenticated client that sends nothing is
    disconnected then."""

    proxy_protocol: Annotated[bool, Switch()] = False
    """As `http.proxy_protocol`, for `mqtt.listen` and `mqtt.tls_listen`."""

    keep_alive_max: Annotated[int, Duration(0, 18 * HOUR)] = 20 * MINUTE
    """A v5 client that asks for a longer keep alive, or for none, gets this one: a connection whose peer vanished
    must not hold memory for ever. 0 leaves it to the client. 3.1.1 has no such negotiation."""

    max_connect_bytes: Annotated[int, Size(KIB, 256 * MIB)] = 64 * KIB
    """The largest CONNECT, which a stranger may make us keep, over WebSocket too: room for a token of 8 KiB and a will
    of 50 KiB."""

    max_packet_bytes: Annotated[int, Size(KIB, 256 * MIB)] = MIB + 128 * KIB
    """The largest packet of a client that is connected: a message of 1 MiB, a topic of 64 KiB and as much again for
    properties. CONNACK says so to v5 clients."""

    receive_maximum: Annotated[int, Count(1, 65_535)] = 1_000
    """QoS 1 and 2 messages a v5 client may send before they are answered: at 256 B a quarter of a megabyte, and enough
    to fill a sync of some milliseconds."""

    max_inflight: Annotated[int, Count(1, 65_535)] = 1_000
    """Messages of QoS 1 and 2 sent to a client before it answers, if its own Receive Maximum is not lower."""

    topic_aliases: Annotated[int, Count(0, 65_535)] = 32
    """Topic aliases in each direction: each holds a topic of up to 64 KiB for as long as the connection lives."""

    max_subscriptions: Annotated[int, Count(1, 1_000_000)] = 1_000
    """Subscriptions of one client; one costs about a kilobyte."""

    max_queued_messages: Annotated[int, Count(1, 10_000_000)] = 10_000
    """Messages of QoS 1 and 2 that wait in one session while its client is away or slow. What does not fit is dropped,
    the newest first, and counted; durable queues have no such limit but their `max_depth`."""

    max_queued_bytes: Annotated[int, Size(KIB, TIB)] = 16 * MIB
    """The same, by size. As much again may be in flight to a client that does not acknowledge."""

    max_retained: Annotated[int, Count(0, 10_000_000)] = 100_000
    """Retained messages of one namespace. They are kept in memory."""

    max_retained_bytes: Annotated[int, Size(0, TIB)] = 256 * MIB
    """The same, by size: 100,000 messages of 1 MiB would be 100 GiB. What does not fit is refused with `quota
    exceeded`."""

    session_expiry_max: Annotated[int, Duration(0, 36_000 * DAY)] = 7 * DAY
    """The longest a session is kept without its client; a longer expiry is cut to this, and CONNACK says so. Sessions
    of 3.1.1 clients without `clean session` get it too. Seven days outlast a long weekend, and a client that never
    comes back does not fill the disk."""

    buffer_bytes: Annotated[int, Size(KIB, GIB)] = 256 * KIB
    """Bytes on their way to a client, beyond what the system buffers, after which it is slow: publishers of its
    namespace wait for it for a moment; then QoS 0 messages for it are dropped, others wait in its session, its
    deliveries stay leased, and nothing more is read from it. Messages to many subscribers are kept once."""

    stall_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = 30 * SECOND
    """A client that stays slow for so long is dropped: it holds the buffers above, and messages others could have."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says on standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"), flag="--log-level")] = "info"
    """The least important line that is written. Nothing is logged for each message at any level but `debug`."""

    format: Annotated[str, Choice(("console", "json"), flag="--log-format")] = "console"
    """How lines look: `console` for people, with colours on a terminal, `json` for machines, one object a line."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of a node. `Config()` is all defaults; `holdfast.config.load` is what the server uses."""

    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    queues: QueueSettings = QueueSettings()
    limits: LimitSettings = LimitSettings()
    transactions: TransactionSettings = TransactionSettings()
    redrives: RedriveSettings = RedriveSettings()
    members: MemberSettings = MemberSettings()
    journal: JournalSettings = JournalSettings()
    webhooks: WebhookSettings = WebhookSettings()
    auth: AuthSettings = AuthSettings()
    rates: RateSettings = RateSettings()
    quotas: QuotaSettings = QuotaSettings()
    tls: TlsSettings = TlsSettings()
    audit: AuditSettings = AuditSettings()
    http: HttpSettings = HttpSettings()
    console: ConsoleSettings = ConsoleSettings()
    grpc: GrpcSettings = GrpcSettings()
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    origins: dict[str, str] = {}
    """Where each value came from, by dotted name: `default`, `file PATH`, `environment HOLDFAST_X`, `flag --x`."""

    @property
    def lake_dir(self) -> Path:
        """The journal's directory, resolved against the data directory."""
        return self.node.data_dir / self.journal.directory
