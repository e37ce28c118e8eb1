// Indexes, collections, views and statistics.

import { step } from './outcome.mjs';

export async function administration(db, api) {
  const things = db.collection('things');
  const create = (name, options) => db.createCollection(name, options).then((made) => made.collectionName);
  await step('create indexes', () => things.createIndexes([
    { key: { group: 1, text: 1 } }, { key: { seen: 1 }, sparse: true, name: 'sparse' },
  ]));
  await step('list indexes', () => things.listIndexes().toArray());
  await step('drop index', () => things.dropIndex('sparse'));
  await step('indexes left', async () => Object.keys(await things.indexInformation()).sort());
  await step('create with validator', () => create('strict', { validator: { a: { $exists: true } } }));
  await step('create capped', () => create('ring', { capped: true, size: 4096, max: 10 }));
  await step('create view', () => create('view', {
    viewOn: 'things', pipeline: [{ $match: { group: 1 } }, { $project: { group: 1 } }],
  }));
  await step('list collections', async () => {
    const found = await db.listCollections().toArray();
    return found.sort((one, other) => (one.name < other.name ? -1 : 1));
  });
  await step('read view', () => db.collection('view').find({}, { sort: { _id: 1 }, limit: 3 }).toArray());
  if (api === 'plain') await step('collection statistics', () => db.command({ collStats: 'strict' }));
  await step('database statistics', async () => (await db.command({ dbStats: 1 })).ok);
}
