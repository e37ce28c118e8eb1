<?php
/* Sessions and transactions. */

declare(strict_types=1);

use MongoDB\Driver\ReadConcern;
use MongoDB\Driver\ReadPreference;
use MongoDB\Driver\Session;

/** Every write adds one to a counter, so the sums show which writes took effect. */
function addOne(Run $run, Session $session): object
{
    return $run->write(
        'things',
        fn ($bulk) => $bulk->update(['_id' => 1], ['$inc' => ['sum' => 1]]),
        options: ['session' => $session],
    );
}

function insertInside(Run $run, Session $session, mixed $id): object
{
    return $run->write('things', fn ($bulk) => $bulk->insert(['_id' => $id]), options: ['session' => $session]);
}

function sums(Run $run, ?Session $session = null): array
{
    $options = $session === null ? [] : ['session' => $session];
    return $run->find('things', ['_id' => 1], ['projection' => ['sum' => 1]], $options);
}

function sessions(Run $run): void
{
    $causal = $run->manager->startSession(['causalConsistency' => true]);
    $run->attempt('sessions: causal write', fn () => addOne($run, $causal));
    $run->attempt('sessions: causal read', fn () => $run->find(
        'things',
        ['_id' => 1],
        ['projection' => ['sum' => 1], 'readConcern' => new ReadConcern(ReadConcern::MAJORITY)],
        ['session' => $causal, 'readPreference' => new ReadPreference('secondaryPreferred')],
    ));

    $snapshot = $run->manager->startSession(['snapshot' => true]);
    $run->attempt('sessions: snapshot, before a write', fn () => sums($run, $snapshot));
    $run->attempt('sessions: write outside the snapshot', fn () => addOne($run, $causal));
    $run->attempt('sessions: snapshot, after the write', fn () => sums($run, $snapshot));
    $run->attempt('sessions: outside the snapshot', fn () => sums($run, $causal));
}

function commitAndAbort(Run $run): void
{
    $session = $run->manager->startSession();
    $run->attempt('transactions: commit', function () use ($run, $session) {
        $session->startTransaction();
        insertInside($run, $session, 'committed');
        addOne($run, $session);
        $session->commitTransaction();
        return $session->getTransactionState();
    });
    $run->attempt('transactions: commit, read back', fn () => $run->find(
        'things',
        ['_id' => ['$in' => [1, 'committed']]],
        ['sort' => ['_id' => 1], 'projection' => ['sum' => 1]],
    ));
    $run->attempt('transactions: read before the abort', function () use ($run, $session) {
        $session->startTransaction();
        insertInside($run, $session, 'aborted');
        return $run->find('things', ['_id' => 'aborted'], [], ['session' => $session]);
    });
    $run->attempt('transactions: abort', function () use ($run, $session) {
        $session->abortTransaction();
        return $run->find('things', ['_id' => 'aborted']);
    });
    $run->attempt('transactions: operation after abort', fn () => addOne($run, $session));
}

function conflict(Run $run): void
{
    $first = $run->manager->startSession();
    $second = $run->manager->startSession();
    $run->attempt('transactions: write conflict', function () use ($run, $first, $second) {
        $first->startTransaction();
        addOne($run, $first);
        $second->startTransaction();
        return addOne($run, $second);
    });
    $run->attempt('transactions: first transaction committed', function () use ($first, $second) {
        // The server has already ended the second transaction. The extension does not return
        // the reply to the abort.
        $second->abortTransaction();
        $first->commitTransaction();
        return $first->getTransactionState();
    });
    $run->attempt('transactions: second transaction repeated', function () use ($run, $second) {
        $second->startTransaction();
        addOne($run, $second);
        $second->commitTransaction();
        return $second->getTransactionState();
    });
    $run->attempt('transactions: both written', fn () => sums($run));
}

/**
 * An error ends a transaction on the server. So later operations in this transaction fail with
 * NoSuchTransaction.
 */
function afterError(Run $run): void
{
    $session = $run->manager->startSession();
    $session->startTransaction();
    $run->attempt('transactions: duplicate key in a transaction', fn () => insertInside($run, $session, 1));
    $run->attempt("transactions: operation after the server's abort", fn () => addOne($run, $session));
    $session->abortTransaction();
}

function transactions(Run $run): void
{
    commitAndAbort($run);
    conflict($run);
    afterError($run);
}
