// TLS connections with the Node driver; see ../scenarios.md.

import mongodb from 'mongodb';

import { MAJOR } from './driver.mjs';

// Version 3 ignores `serverSelectionTimeoutMS` unless it uses its newer way to monitor the
// deployment, which is not its default.
const OPTIONS = MAJOR === 3 ? { useUnifiedTopology: true } : {};

async function writtenAndFound(uri) {
  const client = new mongodb.MongoClient(uri, OPTIONS);
  try {
    await client.connect();
    const things = client.db('tls').collection('things');
    const key = new mongodb.ObjectId();
    await things.insertOne({ _id: key, text: 'tls' });
    return (await things.find({ _id: key }).toArray()).length;
  } finally {
    await client.close();
  }
}

// The messages of the error and of its causes.
function messagesOf(error) {
  const messages = [];
  for (let each = error; each instanceof Error; each = each.cause) messages.push(`${each.name}: ${each.message}`);
  return messages.join('; ');
}

for (const uri of process.argv.slice(2)) {
  let outcome;
  try {
    outcome = { value: await writtenAndFound(uri) };
  } catch (error) {
    if (!(error instanceof mongodb.MongoError)) throw error;
    outcome = { error: messagesOf(error) };
  }
  console.log(JSON.stringify({ step: 'connect', ...outcome }));
}
