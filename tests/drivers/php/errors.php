<?php
/* Steps in which an error is expected, and the errors that they print. */

declare(strict_types=1);

use MongoDB\Driver\BulkWrite;
use MongoDB\Driver\Command;
use MongoDB\Driver\WriteConcern;

// The server expects a 64-bit number. The extension sends 64 bits only if the number does not fit
// 32 bits.
const NO_SUCH_NUMBER = 5000000001;

function dataErrors(Run $run): void
{
    $insert = fn (string $collection, array $document) => $run->write(
        $collection,
        fn ($bulk) => $bulk->insert($document),
    );
    $run->attempt('errors: duplicate key', fn () => $insert('things', ['_id' => 1]));
    $run->attempt('errors: unknown operator', fn () => $run->find('things', ['$nope' => 1]));
    $run->attempt('errors: unknown command', fn () => $run->reply(['noSuchCommand' => 1]));
    $run->attempt('errors: not authorised', function () use ($run) {
        $bulk = new BulkWrite();
        $bulk->insert(['_id' => 1]);
        return resultFields($run->manager->executeBulkWrite('elsewhere.things', $bulk));
    });
    $sum = [
        'input' => ['$range' => [0, 20000]],
        'initialValue' => 0,
        'in' => ['$add' => ['$$value', '$$this']],
    ];
    $slow = ['$expr' => ['$gte' => [['$reduce' => $sum], 0]]];
    $run->attempt(
        'errors: time limit',
        fn () => $run->find('things', $slow, ['maxTimeMS' => 50]),
    );
    $run->reply(['create' => 'checked', 'validator' => ['$jsonSchema' => ['required' => ['name']]]]);
    $run->attempt('errors: document validation', fn () => $insert('checked', ['_id' => 1]));
    $run->attempt(
        'errors: immutable field',
        fn () => $run->write('things', fn ($bulk) => $bulk->update(['_id' => 1], ['$set' => ['_id' => 2]])),
    );
}

function catalogErrors(Run $run): void
{
    $run->attempt(
        'errors: collection exists',
        fn () => $run->reply(['create' => 'checked', 'validator' => ['n' => 1]]),
    );
    $index = fn (string $field) => $run->reply(
        ['createIndexes' => 'checked', 'indexes' => [['key' => [$field => 1], 'name' => 'same']]],
    );
    $run->attempt('errors: index conflict, first index', fn () => $index('a'));
    $run->attempt('errors: index conflict', fn () => $index('b'));
    $run->attempt(
        'errors: invalid namespace',
        fn () => $run->write('.things', fn ($bulk) => $bulk->insert(['_id' => 1])),
    );
}

function protocolErrors(Run $run): void
{
    $run->attempt(
        'errors: cursor not found',
        fn () => $run->reply(['getMore' => NO_SUCH_NUMBER, 'collection' => 'things']),
    );
    $run->attempt('errors: write concern', fn () => $run->write(
        'things',
        fn ($bulk) => $bulk->insert(['_id' => 'too many members']),
        options: ['writeConcern' => new WriteConcern(50, 100)],
    ));
    $run->attempt(
        'errors: invalid cursor id',
        fn () => $run->reply(['getMore' => 'text', 'collection' => 'things']),
    );
    $run->attempt('errors: transaction never begun', fn () => $run->manager->executeCommand(
        'admin',
        new Command(['commitTransaction' => 1, 'txnNumber' => NO_SUCH_NUMBER, 'autocommit' => false]),
        ['session' => $run->manager->startSession()],
    )->toArray());
}

function errors(Run $run): void
{
    dataErrors($run);
    catalogErrors($run);
    protocolErrors($run);
}
