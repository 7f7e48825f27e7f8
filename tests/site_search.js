// Asks the site's own search, as a browser does: node site_search.js SITE QUERY... prints JSON, the places found by each.

"use strict";
const fs = require("fs");
const path = require("path");

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(workers).find((name) => name.startsWith("search."));
const index = JSON.parse(fs.readFileSync(path.join(site, "search.json"), "utf8"));
const SETUP = 0;
const QUERY = 2;
let answered;

globalThis.self = { postMessage: (message) => answered(message) };
require("vm").runInThisContext(fs.readFileSync(path.join(workers, worker), "utf8"));

function ask(type, data) {
  return new Promise((resolve) => {
    answered = resolve;
    self.onmessage({ data: { type, data } });
  });
}

async function main() {
  await ask(SETUP, index);
  const found = {};
  for (const input of queries) {
    const answer = await ask(QUERY, { input });
    found[input] = answer.data.items.map((item) => index.items[item.id].location);
  }
  console.log(JSON.stringify(found));
}

main();
