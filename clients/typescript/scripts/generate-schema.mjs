/**
 * Writes src/wire/schema.generated.ts from the protocol's schema file.
 *
 * The whole of Protobuf is not needed: messages of scalars, enums and messages, singular or repeated. Anything else in
 * the file stops the generation, so that the codec never guesses. `--check` only compares.
 */
import { readFileSync, writeFileSync } from "node:fs";

const SCHEMA = new URL("../../../src/mainstem/wire/lakesync.proto", import.meta.url);
const OUTPUT = new URL("../src/wire/schema.generated.ts", import.meta.url);
const SCALARS = { string: "string", bytes: "Uint8Array", fixed64: "bigint", uint32: "number", bool: "boolean" };

export function generate(source) {
  const text = source.replace(/\/\/.*$/gm, "");
  const enums = blocks(text, "enum").map(([name, body]) => [name, statements(body).map((line) => enumValue(name, line))]);
  const enumNames = new Set(enums.map(([name]) => name));
  const messages = blocks(text, "message");
  const messageNames = new Set(messages.map(([name]) => name));
  const lines = ["// Generated from lakesync.proto by scripts/generate-schema.mjs. Do not edit.", ""];
  for (const [name, values] of enums) {
    lines.push(`export const ${name} = {`, ...values.map(([key, number]) => `  ${key}: ${number},`), "} as const;", "");
  }
  for (const [name, body] of messages) {
    const fields = statements(body).map((line) => field(line, enumNames, messageNames));
    lines.push(`export interface ${name}Wire {`, ...fields.map((f) => `  ${f.name}: ${f.type};`), "}", "");
  }
  lines.push(
    'export type Scalar = "string" | "bytes" | "fixed64" | "uint32" | "bool" | "enum";',
    "export type MessageName = keyof typeof MESSAGES;",
    "/** number, name, kind, repeated */",
    "export type Field = readonly [number, string, Scalar | MessageName, boolean];",
    "",
    "export const MESSAGES = {",
  );
  for (const [name, body] of messages) {
    const fields = statements(body).map((line) => field(line, enumNames, messageNames));
    lines.push(`  ${name}: [`, ...fields.map((f) => `    [${f.number}, "${f.name}", "${f.kind}", ${f.repeated}],`), "  ],");
  }
  lines.push("} as const;", "");
  return lines.join("\n");
}

function blocks(text, keyword) {
  return [...text.matchAll(new RegExp(`\\b${keyword}\\s+(\\w+)\\s*\\{([^}]*)\\}`, "g"))].map((match) => [match[1], match[2]]);
}

function statements(body) {
  return body.split(";").map((line) => line.trim()).filter(Boolean);
}

function enumValue(name, line) {
  const match = /^(\w+)\s*=\s*(\d+)$/.exec(line);
  if (!match) throw new Error(`enum ${name}: cannot read ${line}`);
  const prefix = name.replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase() + "_";
  return [match[1].replace(prefix, ""), Number(match[2])];
}

function field(line, enumNames, messageNames) {
  const match = /^(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)$/.exec(line);
  if (!match) throw new Error(`cannot read field: ${line}`);
  const [, repeated, type, snake, number] = match;
  const name = snake.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
  const kind = enumNames.has(type) ? "enum" : type;
  if (kind !== "enum" && !(kind in SCALARS) && !messageNames.has(kind)) throw new Error(`unknown type: ${line}`);
  if (repeated && !messageNames.has(kind)) throw new Error(`only messages repeat: ${line}`);
  const single = kind === "enum" ? "number" : SCALARS[kind] ?? `${kind}Wire`;
  return { name, kind, number, repeated: Boolean(repeated), type: repeated ? `${single}[]` : single };
}

const wanted = generate(readFileSync(SCHEMA, "utf8"));
if (process.argv.includes("--check")) {
  if (readFileSync(OUTPUT, "utf8") !== wanted) {
    console.error("schema.generated.ts is not what lakesync.proto says: run `npm run generate`");
    process.exit(1);
  }
} else {
  writeFileSync(OUTPUT, wanted);
}
