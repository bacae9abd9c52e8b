// Asks a server about hidden matrices: one JSON array of rows on each line of stdin, one JSON answer on each line of stdout.
//
//     node examples/javascript/ask.mjs --server http://127.0.0.1:8765 --front DIGEST --epsilon 8 < hidden.jsonl
//
// --front is the digest of your own front and --epsilon the most that one release may cost you: neither is taken from
// the server. --token-file names a file with your token.
//
// There is NO LEDGER here. Every line is a fresh release and costs epsilon, also where two lines are the same text. A
// client for daily use stores each release before it sends it, sends the stored bytes again, and stops at a budget
// (docs/wire-format.md, "What a client must do").
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Client } from "./wire.mjs";

const text = { type: "string" };
const { values } = parseArgs({ options: { server: text, front: text, epsilon: text, "token-file": text } });
const token = values["token-file"] === undefined ? null : readFileSync(values["token-file"], "ascii").trim();
const client = new Client(values.server, { front: values.front, epsilon: Number(values.epsilon) }, token);
const manifest = await client.manifest();
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  console.log(JSON.stringify(await client.ask(JSON.parse(line), manifest)));
}
