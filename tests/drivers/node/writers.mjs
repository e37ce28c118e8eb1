// Writers during failures, with the Node driver; see ../scenarios.md.

import readline from 'node:readline';

import mongodb from 'mongodb';

const [uri, database, name] = process.argv.slice(2);
const acknowledged = [];
const failed = [];
let over = false;

async function write(things, number) {
  for (let count = 0; !over; count += 1) {
    const key = `${name} ${number} ${count}`;
    await things.insertOne({ _id: key, n: 0 });
    const changed = await things.updateOne({ _id: key }, { $inc: { n: 1 } });
    if (changed.matchedCount !== 1) throw new Error(`${key} was not found for its update`);
    const found = await things.findOne({ _id: key });
    if (found?.n !== 1) throw new Error(`${key} was read as ${JSON.stringify(found)}`);
    acknowledged.push(key);
  }
}

const client = new mongodb.MongoClient(uri);
const things = client.db(database).collection('things');
const writers = [0, 1, 2].map((number) => write(things, number).catch((error) => failed.push(`${error.name}: ${error.message}`)));
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
await lines.next();
over = true;
await Promise.all(writers);
console.log(JSON.stringify({ acknowledged, failed }));
// Keep the connections open until the test has counted them.
await lines.next();
await client.close();
