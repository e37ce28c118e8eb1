// The outcome of a step, as one line of JSON.

import { EJSON, MongoError, SKIPPED_STEPS, plain, replyOf } from './driver.mjs';

// Runs a step and prints its outcome. An error that does not come from the driver's API ends the
// program.
export async function step(name, action) {
  if (name in SKIPPED_STEPS) return;
  let outcome;
  try {
    outcome = { value: plain(await action()) ?? null };
  } catch (error) {
    // GridFS throws plain errors for a missing file.
    if (!(error instanceof MongoError) && error.code !== 'ENOENT') throw error;
    outcome = { error: errorFields(error) };
  }
  console.log(EJSON.stringify({ step: name, ...outcome }, { relaxed: false }));
}

// Prints why the driver refuses the deployment, and ends the program.
export function refused(error) {
  if (!(error instanceof MongoError)) throw error;
  console.log(EJSON.stringify({ step: 'connect', error: errorFields(error) }, { relaxed: false }));
  process.exit(1);
}

function errorFields(error) {
  return {
    type: error.name,
    code: error.code ?? null,
    codeName: error.codeName ?? null,
    labels: [...(error.errorLabels ?? [])].sort(),
    message: error.message,
    reply: replyOf(error),
    writeErrors: (error.writeErrors ?? []).map((each) => each.toJSON?.() ?? each),
    result: error.result ? resultFields(error.result) : null,
  };
}

// Copies the fields of a bulk write's result, because they are getters.
export function resultFields(result) {
  const { insertedCount, matchedCount, modifiedCount, deletedCount, upsertedCount, insertedIds, upsertedIds } = result;
  return { insertedCount, matchedCount, modifiedCount, deletedCount, upsertedCount, insertedIds, upsertedIds };
}
