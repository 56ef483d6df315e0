"use strict";
// A small MQTT 5 client over WebSocket, for the page that tries topics out: connect, subscribe and publish at QoS 0 and 1.

const utf8 = new TextEncoder(), text = new TextDecoder();
const bytes2 = (number) => [number >> 8, number & 255];
function string(value) { const content = utf8.encode(value); return [...bytes2(content.length), ...content]; }
function packet(first, ...parts) {
  const body = parts.flatMap((part) => [...part]), length = [];
  let left = body.length;
  do { length.push((left % 128) | (left > 127 ? 128 : 0)); left = Math.floor(left / 128); } while (left);
  return new Uint8Array([first, ...length, ...body]);
}

class Reader {
  constructor(content) { this.content = content; this.at = 0; }
  byte() { return this.content[this.at++]; }
  two() { return (this.byte() << 8) | this.byte(); }
  take(count) { this.at += count; return this.content.subarray(this.at - count, this.at); }
  string() { return text.decode(this.take(this.two())); }
  number() { let value = 0, factor = 1, byte; do { byte = this.byte(); value += (byte & 127) * factor; factor *= 128; } while (byte & 128); return value; }
  get left() { return this.content.length - this.at; }
  properties() { // what is shown of them: the reason's text
    const end = this.number() + this.at, found = {};
    const ONE = [1, 23, 25, 36, 37, 40, 41, 42], TWO = [19, 33, 34, 35], FOUR = [2, 17, 24, 39], BINARY = [9, 22];
    while (this.at < end) {
      const id = this.byte();
      if (ONE.includes(id)) this.take(1);
      else if (TWO.includes(id)) this.take(2);
      else if (FOUR.includes(id)) this.take(4);
      else if (BINARY.includes(id)) this.take(this.two());
      else if (id === 11) this.number();
      else if (id === 38) { this.string(); this.string(); }
      else { const value = this.string(); if (id === 31) found.reason = value; if (id === 3) found.contentType = value; }
    }
    return found;
  }
}

// `on` has a function for each event: connected, message, answered (of a subscription or publication), closed.
class Mqtt {
  constructor(url, on, user, password) {
    this.on = on; this.waiting = new Map(); this.next = 1; this.buffer = new Uint8Array(); this.why = "";
    this.socket = new WebSocket(url, "mqtt");
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      const flags = 2 | (user ? 128 : 0) | (password ? 64 : 0);
      this.send(packet(0x10, string("MQTT"), [5, flags, ...bytes2(60), 0], string("console-" + crypto.getRandomValues(new Uint32Array(1))[0].toString(16)), user ? string(user) : [], password ? string(password) : []));
    };
    this.socket.onmessage = (event) => this.read(new Uint8Array(event.data));
    this.socket.onclose = () => { clearInterval(this.timer); this.on.closed(this.why); };
  }
  send(content) { if (this.socket.readyState === WebSocket.OPEN) this.socket.send(content); }
  id() { const id = this.next; this.next = id % 65535 + 1; return id; }
  close() { this.send(packet(0xe0, [0, 0])); this.socket.close(); }
  subscribe(filter, qos) {
    const id = this.id();
    this.waiting.set(id, "subscribed to " + filter);
    this.send(packet(0x82, bytes2(id), [0], string(filter), [qos]));
  }
  unsubscribe(filter) {
    const id = this.id();
    this.waiting.set(id, "unsubscribed from " + filter);
    this.send(packet(0xa2, bytes2(id), [0], string(filter)));
  }
  publish(topic, payload, qos, retain) {
    const id = qos ? this.id() : 0;
    if (qos) this.waiting.set(id, "published to " + topic);
    this.send(packet(0x30 | (qos << 1) | (retain ? 1 : 0), string(topic), qos ? bytes2(id) : [], [0], utf8.encode(payload)));
    if (!qos) this.on.answered("published to " + topic + " (QoS 0: nobody confirms it)", 0, "");
  }
  read(content) {
    const all = new Uint8Array(this.buffer.length + content.length);
    all.set(this.buffer); all.set(content, this.buffer.length);
    let at = 0;
    while (at < all.length) {
      const head = new Reader(all.subarray(at + 1, at + 5));
      const length = head.number();
      if (Number.isNaN(length) || head.at > head.content.length || at + 1 + head.at + length > all.length) break;
      const begin = at + 1 + head.at;
      this.handle(all[at], new Reader(all.subarray(begin, begin + length)));
      at = begin + length;
    }
    this.buffer = all.slice(at);
  }
  handle(first, body) {
    switch (first >> 4) {
      case 2: {
        body.byte();
        const code = body.byte(), { reason } = body.properties();
        if (code >= 128) { this.why = "The server refused the connection: " + (reason || "reason 0x" + code.toString(16)); return; }
        this.timer = setInterval(() => this.send(packet(0xc0)), 30000);
        this.on.connected();
        break;
      }
      case 3: {
        const qos = (first >> 1) & 3, topic = body.string(), id = qos ? body.two() : 0;
        const { contentType } = body.properties();
        if (qos) this.send(packet(0x40, bytes2(id)));
        this.on.message({ topic, qos, retain: Boolean(first & 1), payload: body.take(body.left), contentType });
        break;
      }
      case 4: case 9: case 11: {
        const id = body.two();
        const brief = first >> 4 === 4 && !body.left; // a PUBACK that succeeded may leave out all that follows
        let code = 0, reason = "";
        if (!brief && first >> 4 === 4) { code = body.byte(); reason = body.left ? body.properties().reason : ""; }
        if (first >> 4 !== 4) { reason = body.properties().reason; code = body.left ? body.byte() : 0; }
        this.on.answered(this.waiting.get(id) || "", code, reason || "");
        this.waiting.delete(id);
        break;
      }
      case 14: {
        const code = body.left ? body.byte() : 0;
        this.why = "The server ended the connection: " + ((body.left && body.properties().reason) || "reason 0x" + code.toString(16));
      }
    }
  }
}

// --- the page ------------------------------------------------------------------------------------------------------
(function () {
  const KEPT = 200; // lines of the log
  const at = (name) => document.getElementById("mqtt-" + name);
  const state = at("state"), log = at("log"), filters = at("filters");
  let client = null;

  function show(kind, title, body) {
    const line = document.createElement("li"), head = document.createElement("div"), when = document.createElement("span");
    line.className = kind;
    head.textContent = title + " ";
    when.className = "soft small";
    when.textContent = new Date().toLocaleTimeString();
    head.append(when);
    line.append(head);
    if (body !== undefined) { const pre = document.createElement("pre"); pre.textContent = body; line.append(pre); }
    log.prepend(line);
    while (log.children.length > KEPT) log.lastChild.remove();
    at("none").hidden = true;
  }
  function ready(yes, what) {
    state.textContent = what;
    state.className = "pill" + (yes ? " good" : "");
    for (const part of document.querySelectorAll("[data-connected]")) part.disabled = !yes;
    at("connect").textContent = yes ? "Disconnect" : "Connect";
    if (!yes) filters.replaceChildren();
  }
  const printable = (payload) => { try { return new TextDecoder("utf-8", { fatal: true }).decode(payload); } catch (_) { return [...payload.subarray(0, 512)].map((byte) => byte.toString(16).padStart(2, "0")).join(" "); } };

  at("session").addEventListener("submit", (event) => {
    event.preventDefault();
    if (client) { client.close(); return; }
    const user = at("user") ? at("user").value : "", password = at("password") ? at("password").value : "";
    ready(false, "connecting …");
    client = new Mqtt(location.origin.replace(/^http/, "ws") + "/mqtt", {
      connected: () => ready(true, "connected"),
      message: (one) => show("in", "← " + one.topic + (one.retain ? ", retained" : "") + ", QoS " + one.qos, printable(one.payload)),
      answered: (what, code, reason) => show(code >= 128 ? "bad" : "out", code >= 128 ? "Not " + what + ": " + (reason || "reason 0x" + code.toString(16)) : what[0].toUpperCase() + what.slice(1)),
      closed: (why) => { client = null; ready(false, "not connected"); if (why) show("bad", why); },
    }, user, password);
  });
  at("subscribe").addEventListener("submit", (event) => {
    event.preventDefault();
    const filter = at("filter").value.trim();
    if (!filter || !client) return;
    if (/^\$(queue|share)\//.test(filter)) { show("bad", "Not subscribed to " + filter + ": it would take messages away from consumers. Look at the queue's messages instead."); return; }
    client.subscribe(filter, Number(at("sub-qos").value));
    const chip = document.createElement("button");
    chip.type = "button"; chip.className = "chip"; chip.textContent = filter + " ×";
    chip.setAttribute("aria-label", "Unsubscribe from " + filter);
    chip.addEventListener("click", () => { if (client) client.unsubscribe(filter); chip.remove(); });
    filters.append(chip);
  });
  const publish = at("publish");
  if (publish) publish.addEventListener("submit", (event) => {
    event.preventDefault();
    if (client) client.publish(at("topic").value.trim(), at("payload").value, Number(at("pub-qos").value), at("retain").checked);
  });
  window.addEventListener("pagehide", () => { if (client) client.close(); });
  ready(false, "not connected");
})();
