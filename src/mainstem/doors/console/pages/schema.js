"use strict";
// The API's documentation, from the server's own OpenAPI document.
(async () => {
  const VERBS = ["get", "post", "put", "patch", "delete"];
  const host = document.getElementById("api");

  function make(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.filter(Boolean));
    return made;
  }

  const answer = await fetch("/schema/openapi.json", { cache: "no-store" });
  if (!answer.ok) { host.append(make("p", { class: "trouble" }, `The server answered ${answer.status}.`)); return; }
  const document_ = await answer.json();
  document.getElementById("version").textContent = `version ${document_.info.version}`;

  // A schema with its references opened, as far as a page can show them.
  function shape(schema, depth = 0) {
    if (!schema) return "any";
    if (schema.$ref) {
      const name = schema.$ref.split("/").pop();
      return depth > 4 ? name : shape(document_.components.schemas[name], depth);
    }
    const either = schema.oneOf ?? schema.anyOf;
    if (either) {
      const kinds = either.map((each) => shape(each, depth));
      return kinds.every((kind) => typeof kind === "string") ? [...new Set(kinds)].join(" | ") : kinds.find((kind) => typeof kind === "object");
    }
    if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
    if (schema.type === "array" || schema.items) return [shape(schema.items ?? schema.prefixItems?.[0], depth + 1)];
    if (schema.properties) {
      const required = new Set(schema.required ?? []);
      return Object.fromEntries(Object.entries(schema.properties).map(([name, each]) => [required.has(name) ? name : `${name}?`, shape(each, depth + 1)]));
    }
    if (schema.additionalProperties) return { "…": shape(schema.additionalProperties, depth + 1) };
    const type = Array.isArray(schema.type) ? schema.type.join(" | ") : schema.type ?? "any";
    const bounds = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"]]
      .filter(([key]) => schema[key] !== undefined).map(([key, sign]) => `${sign} ${schema[key]}`);
    return [type, ...bounds].join(" ");
  }

  function block(title, value) {
    return [make("h3", {}, title), make("pre", {}, JSON.stringify(value, null, 2))];
  }

  function operation(path, verb, told) {
    const details = make("details", {}, make("summary", {},
      make("span", { class: `verb ${verb.toUpperCase()}` }, verb.toUpperCase()), make("code", {}, path), make("span", { class: "note" }, told.summary ?? "")));
    details.addEventListener("toggle", () => {
      if (details.childElementCount > 1) return;
      if (told.description) details.append(make("p", {}, told.description));
      if (told.parameters?.length) {
        details.append(...block("Parameters", Object.fromEntries(told.parameters.map((each) => [`${each.name}${each.required ? "" : "?"} (${each.in})`, shape(each.schema)]))));
      }
      const body = Object.entries(told.requestBody?.content ?? {})[0];
      if (body) details.append(...block(`Body · ${body[0]}`, shape(body[1].schema)));
      for (const [code, response] of Object.entries(told.responses ?? {})) {
        const content = Object.entries(response.content ?? {})[0];
        details.append(...(content ? block(`${code} · ${response.description}`, shape(content[1].schema)) : [make("h3", {}, `${code} · ${response.description}`)]));
      }
    });
    return details;
  }

  const groups = new Map();
  for (const [path, item] of Object.entries(document_.paths)) {
    for (const verb of VERBS) {
      if (!item[verb]) continue;
      const group = item[verb].tags?.[0] ?? "server";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(operation(path, verb, item[verb]));
    }
  }
  for (const [name, operations] of [...groups].sort()) {
    host.append(make("section", { class: "card" }, make("h2", {}, name), ...operations));
  }
})();
