// Of /docs: sends the requests of its forms to this server, and shows what it says. Nothing is kept: a credential is in
// the page's field only.
"use strict";

const SHOWN_MAX = 100000; // characters of a response

function requestOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const input of form.querySelectorAll("[data-in]")) {
    const { in: place, name } = input.dataset;
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(input.value));
    else if (input.value !== "" && place === "query") query.append(name, input.value);
    else if (input.value !== "" && place === "header") headers[name] = input.value;
  }
  const credential = document.getElementById("credential").value.trim();
  if (credential) headers.authorization = credential.includes(":") ? `Basic ${basic(credential)}` : `Bearer ${credential}`;
  const body = form.querySelector("textarea");
  if (body) headers["content-type"] = "application/json";
  const text = query.toString();
  return { url: path + (text ? `?${text}` : ""), method: form.dataset.method, headers, body: body ? body.value : undefined };
}

function basic(credential) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(credential)));
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function showCommand(form) {
  const { url, method, headers, body } = requestOf(form);
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(location.origin + url)];
  for (const [name, value] of Object.entries(headers)) {
    parts.push("-H", name === "authorization" ? '"authorization: $AUTHORIZATION"' : quoted(`${name}: ${value}`));
  }
  if (body) parts.push("-d", quoted(body));
  form.closest(".card").querySelector(".curl").textContent = parts.join(" ");
}

function pretty(text, type) {
  const isJson = /json$/.test((type || "").split(";")[0]);
  if (!isJson || /[:[,]\s*-?\d{16,}/.test(text)) return text; // such numbers would lose digits
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function send(form) {
  const { url, method, headers, body } = requestOf(form);
  const button = form.querySelector("button");
  const [status, output] = [form.querySelector(".status"), form.querySelector(".response")];
  button.disabled = true;
  status.className = "status";
  status.textContent = "Waiting…";
  output.hidden = true;
  try {
    const response = await fetch(url, { method, headers, body, credentials: "omit" });
    const text = await response.text();
    status.className = response.ok ? "status good" : "status bad";
    status.textContent = `${response.status} ${response.statusText}`;
    output.textContent = pretty(text, response.headers.get("content-type")).slice(0, SHOWN_MAX);
    output.hidden = text === "";
  } catch (error) {
    status.className = "status bad";
    status.textContent = `The server did not answer: ${error.message}`;
  } finally {
    button.disabled = false;
  }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  form.addEventListener("input", () => showCommand(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (form.dataset.method === "GET" || confirm(`Send ${form.dataset.method} to this server? It is done for real.`)) send(form);
  });
  showCommand(form);
}
