"""Who a caller is and what it may do: the one place that decides, for every front.

    gate.py        the entry point: tokens, passwords, certificates and anonymous callers become principals; rate limits
    principal.py   who a caller is, and what its scopes allow
    keyring.py     the keys of tokens, each bound to its algorithm (keys.py: read, made and used)
    issuer.py      the keys of an identity provider, fetched from it
    tokens.py      JWTs: signature, then claims, then a principal
    signatures/    AWS Signature Version 4: requests that are signed with an access key
    users.py       the users file
    passwords.py   argon2id, off the loop
    throttle.py    limits on wrong passwords
    watch.py       files that change while the server runs
    files.py       how such files are written
    audit.py       who did what (syncing.py: and that it is on disk)
    audit_shipping.py  sends the audit log on (audit_places.py: to syslog; audit_webhook.py)
    rates.py       token buckets of namespaces
    tls.py         the server's side of TLS, and the subject of a client's certificate
    fronts/        what all fronts do: end long requests with their caller's credential, check redrives at both ends
    exposure.py    no listening beyond loopback without credentials

Fronts read credentials from their protocol, ask the gate, and translate its answer to their protocol:

    exposure.check(config.auth, host, front="HTTP", tls=...)   before binding
    who = await gate.token(text, peer)                         or password, certificate, anonymous
    gate.check_browser(who, host, origin)                      where browsers can call
    who.require(Action.PRODUCE, queue)                         for each thing it wants
    gate.admit(who.namespace, messages, size_bytes)            before what it sends is taken
    with gate.audit.act(who, "queue.delete", queue, front="HTTP", peer=peer): ...
    gate.valid(who)                                            now and then, on connections that stay open

They hold no access rules, and nothing here knows a protocol.
"""
