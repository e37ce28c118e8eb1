// What an application does, by the Node driver; prints one JSON line a step, without what differs between two
// runs. Arguments: connection string, database, "stable" or "plain".

import mongodb from 'mongodb';

const { BSON: { EJSON }, Binary, Decimal128, Long, MongoClient, ObjectId } = mongodb;

// Times, counters and identifiers of this run, and what two topologies rightly answer differently.
const VOLATILE = new Set([
  '$clusterTime', 'operationTime', 'electionId', 'opTime', 'localTime', 'id', 'connectionId', 'lsid', 'uuid',
  'topologyVersion', 'clusterTime', '_data', 'wallTime', 'host',
]);

function masked(value) {
  if (Array.isArray(value)) return value.map(masked);
  // A refused command is quoted as the server saw it: with the identifiers of this run, and with $client.
  if (typeof value === 'string') return value.replace(/(to execute command ).*/s, '$1masked');
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(
    Object.entries(value).map(([k, v]) => [k, VOLATILE.has(k) ? 'masked' : masked(v)]));
}

function say(step, value) {
  const plain = JSON.parse(EJSON.stringify({ value }, { relaxed: false }));
  console.log(JSON.stringify([step, masked(plain.value ?? null)]));
}

async function attempt(step, action) {
  try {
    say(step, await action());
  } catch (error) {
    if (error.name === 'TypeError' || error.name === 'ReferenceError') throw error;
    say(step, {
      error: error.name, code: error.code ?? null, labels: [...(error.errorLabels ?? [])].sort(),
      message: error.message, writeErrors: (error.writeErrors ?? []).map((e) => [e.index, e.code]),
    });
  }
}

async function documents(db) {
  const things = db.collection('things');
  await attempt('insert', async () => (await things.insertMany(
    Array.from({ length: 300 }, (_, n) => ({ _id: n, text: 'x'.repeat(500), group: n % 7 })))).insertedCount);
  await attempt('types', () => things.insertOne({
    _id: 'types', oid: new ObjectId('0123456789abcdef01234567'), bytes: new Binary(Buffer.from([0, 255]), 128),
    decimal: Decimal128.fromString('1.10'), long: Long.fromString('9007199254740993'),
    date: new Date(Date.UTC(2020, 0, 2)), unicode: 'naïve Ω 🌊', nested: { a: [null, true, 1.5] },
  }));
  await attempt('read types', () => things.findOne({ _id: 'types' }, { promoteValues: false }));
  await attempt('batches', async () =>
    (await things.find({ group: 3 }, { batchSize: 5 }).sort({ _id: 1 }).toArray()).map((d) => d._id));
  // Reads its own write, wherever the read goes to.
  await attempt('secondary', () => db.client.withSession({ causalConsistency: true }, async (session) => {
    await things.updateOne({ _id: 1 }, { $set: { mine: true } }, { session });
    const elsewhere = { session, readPreference: 'secondaryPreferred', readConcern: { level: 'majority' } };
    return [await things.findOne({ _id: 1 }, elsewhere), await things.countDocuments({}, elsewhere)];
  }));
  await attempt('aggregate', () => things.aggregate(
    [{ $group: { _id: '$group', n: { $sum: 1 } } }, { $sort: { _id: 1 } }], { batchSize: 2 }).toArray());
  await attempt('update', () => things.updateMany({ group: 2 }, { $set: { seen: true } }));
  await attempt('upsert', () => things.updateOne({ _id: 'new' }, { $set: { a: 1 } }, { upsert: true }));
  await attempt('modify', () => things.findOneAndUpdate(
    { _id: 'new' }, { $inc: { a: 1 } }, { returnDocument: 'after', includeResultMetadata: true }));
  await attempt('delete', () => things.deleteMany({ group: 5 }));
  await attempt('large', async () =>
    (await things.insertOne({ _id: 'large', bytes: Buffer.alloc(5_000_000, 1) })).acknowledged);
  await attempt('read large', async () => (await things.findOne({ _id: 'large' })).bytes.length());
  await attempt('bulk', async () => {
    const result = await things.bulkWrite([
      { insertOne: { document: { _id: 'b' } } },
      { updateOne: { filter: { _id: 'b' }, update: { $set: { x: 1 } } } },
      { deleteOne: { filter: { _id: 'b' } } },
    ]);
    return [result.insertedCount, result.modifiedCount, result.deletedCount];
  });
}

async function failures(client, db) {
  const things = db.collection('things');
  await attempt('duplicate', () => things.insertOne({ _id: 1 }));
  await attempt('bulk failure', () => things.bulkWrite(
    ['c', 1, 'd'].map((_id) => ({ insertOne: { document: { _id } } })), { ordered: false }));
  await attempt('bad operator', () => things.findOne({ $nope: 1 }));
  await attempt('time limit', () => things.find({
    $expr: { $function: { body: 'function() { sleep(200) }', args: [], lang: 'js' } },
  }, { maxTimeMS: 50 }).toArray());
  await attempt('not allowed', () => client.db('elsewhere').collection('things').insertOne({ _id: 1 }));
}

async function unacknowledged(client, db) {
  await attempt('unacknowledged', async () => {
    const things = db.collection('unacknowledged');
    // One after another, so on one connection of the driver's pool: the order holds.
    for (let n = 0; n < 50; n += 1) await things.insertOne({ _id: n }, { writeConcern: { w: 0 } });
    return things.countDocuments({});
  });
}

async function transactions(client, db) {
  const things = db.collection('things');
  await attempt('commit', () => client.withSession(async (session) => {
    session.startTransaction();
    await things.insertOne({ _id: 't1' }, { session });
    await things.updateOne({ _id: 't1' }, { $set: { x: 2 } }, { session });
    await session.commitTransaction();
    return things.findOne({ _id: 't1' }, { session });
  }));
  await attempt('abort', () => client.withSession(async (session) => {
    session.startTransaction();
    await things.insertOne({ _id: 't2' }, { session });
    const inside = await things.findOne({ _id: 't2' }, { session });
    await session.abortTransaction();
    return [inside, await things.findOne({ _id: 't2' })];
  }));
  await attempt('callback', () => client.withSession({ causalConsistency: true }, async (session) => {
    await session.withTransaction(() => things.insertOne({ _id: 't3' }, { session }));
    return things.findOne({ _id: 't3' }, { session });
  }));
}

async function changeStream(db) {
  const things = db.collection('things');
  await attempt('watch', async () => {
    const stream = things.watch([], { maxAwaitTimeMS: 1000 });
    try {
      // Opens the stream, which the driver does not do before it is asked for something.
      const nothing = await stream.tryNext();
      await things.insertOne({ _id: 'watched' });
      await things.deleteOne({ _id: 'watched' });
      const events = [await stream.next(), await stream.next()];
      return [nothing, ...events.map((e) => [e.operationType, e.documentKey])];
    } finally {
      await stream.close();
    }
  });
}

async function administration(db) {
  const things = db.collection('things');
  await attempt('index', () => things.createIndex({ group: 1 }));
  await attempt('indexes', async () => (await things.listIndexes().toArray()).map((i) => i.name));
  await attempt('collections', async () =>
    (await db.listCollections({}, { nameOnly: true }).toArray()).map((c) => c.name).sort());
  await attempt('ping', () => db.command({ ping: 1 }));
  await attempt('count', () => db.command({ count: 'things' }));
  await attempt('unknown command', () => db.command({ noSuchCommand: 1 }));
  await attempt('who', async () => (await db.command({ connectionStatus: 1 })).authInfo.authenticatedUsers);
  await attempt('build', async () => (await db.command({ buildInfo: 1 })).version);
  await attempt('drop', () => db.dropDatabase());
}

const [uri, name, api] = process.argv.slice(2);
const options = api === 'stable' ? { serverApi: { version: '1', strict: true } } : {};
const client = new MongoClient(uri, options);
try {
  const db = client.db(name);
  await documents(db);
  await failures(client, db);
  await unacknowledged(client, db);
  await transactions(client, db);
  await changeStream(db);
  await administration(db);
} finally {
  await client.close();
}
