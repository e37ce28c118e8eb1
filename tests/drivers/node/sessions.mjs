// Sessions, transactions and change streams.

import { once } from 'node:events';

import { withSession } from './driver.mjs';
import { step } from './outcome.mjs';

export async function causalAndSnapshot(db) {
  const things = db.collection('things');
  await step('session causal', () => withSession(db.client, { causalConsistency: true }, async (session) => {
    await things.insertOne({ _id: 'causal' }, { session });
    const found = await things.findOne({ _id: 'causal' }, { session, readConcern: { level: 'majority' } });
    return [found, session.operationTime !== undefined];
  }));
  await step('session snapshot', () => withSession(db.client, { snapshot: true }, async (session) => {
    const before = await things.findOne({ _id: 3 }, { session });
    await things.updateOne({ _id: 3 }, { $set: { snapshot: 'changed' } });
    return [before, await things.findOne({ _id: 3 }, { session }), await things.findOne({ _id: 3 })];
  }));
}

export async function transactions(db) {
  const things = db.collection('things');
  const { client } = db;
  await step('transaction commit', () => withSession(client, {}, async (session) => {
    session.startTransaction();
    await things.insertOne({ _id: 't1' }, { session });
    await things.updateOne({ _id: 't1' }, { $set: { x: 2 } }, { session });
    await session.commitTransaction();
    return things.findOne({ _id: 't1' }, { session });
  }));
  await step('transaction abort', () => withSession(client, {}, async (session) => {
    session.startTransaction();
    await things.insertOne({ _id: 't2' }, { session });
    const inside = await things.findOne({ _id: 't2' }, { session });
    await session.abortTransaction();
    return [inside, await things.findOne({ _id: 't2' })];
  }));
  await step('transaction callback', () => withSession(client, {}, async (session) => {
    await session.withTransaction(() => things.insertOne({ _id: 't3' }, { session }));
    return things.findOne({ _id: 't3' }, { session });
  }));
  await withSession(client, {}, (first) => withSession(client, {}, (second) => conflict(things, first, second)));
}

async function conflict(things, first, second) {
  const begin = async (session, x) => {
    session.startTransaction();
    return (await things.updateOne({ _id: 't1' }, { $set: { x } }, { session })).modifiedCount;
  };
  await step('transaction first', () => begin(first, 'first'));
  await step('transaction conflict', () => begin(second, 'second'));
  await step('transaction conflict aborted', () => second.abortTransaction());
  await step('transaction first commit', () => first.commitTransaction());
  await step('transaction again', async () => {
    const count = await begin(second, 'second');
    await second.commitTransaction();
    return [count, await things.findOne({ _id: 't1' })];
  });
  await step('transaction after abort', async () => {
    second.startTransaction();
    await things.insertOne({ _id: 't4' }, { session: second });
    await second.abortTransaction();
    return things.findOne({ _id: 't4' }, { session: second });
  });
}

export async function changeStream(db) {
  const watched = db.collection('watched');
  let second = null;
  await step('change stream', async () => {
    const stream = watched.watch([], { maxAwaitTimeMS: 200 });
    try {
      const first = await opened(stream);
      await watched.insertOne({ _id: 1 });
      await watched.updateOne({ _id: 1 }, { $set: { a: 1 } });
      await watched.deleteOne({ _id: 1 });
      const events = [await first(), await stream.next(), await stream.next()];
      second = events[1]._id;
      return events;
    } finally {
      await stream.close();
    }
  });
  if (second === null) return;
  await step('change stream resumed', async () => {
    const stream = watched.watch([], { resumeAfter: second });
    try {
      return await stream.next();
    } finally {
      await stream.close();
    }
  });
}

// Opens the stream, which the driver does only on the first read. Returns a function that reads the
// first event.
async function opened(stream) {
  if (stream.tryNext) {
    await stream.tryNext();
    return () => stream.next();
  }
  // Version 3 has no tryNext, so the first read must start before the first event.
  const first = stream.next();
  await once(stream.cursor, 'init');
  return () => first;
}
