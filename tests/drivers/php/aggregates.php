<?php
/* Aggregation, and cursors that are not read to their end. */

declare(strict_types=1);

use MongoDB\Driver\Cursor;
use MongoDB\Driver\Query;

function aggregates(Run $run): void
{
    $aggregate = fn (array $pipeline, array $cursor = []) => $run->command(
        ['aggregate' => 'things', 'pipeline' => $pipeline, 'cursor' => (object) $cursor],
    );
    $copied = fn () => $run->find('copied', [], ['sort' => ['_id' => 1]]);
    $run->attempt('aggregate: groups in batches', fn () => $aggregate(
        [['$group' => ['_id' => '$group', 'n' => ['$sum' => 1]]], ['$sort' => ['_id' => 1]]],
        ['batchSize' => 2],
    ));
    $run->attempt('aggregate: lookup', fn () => $aggregate([
        ['$match' => ['_id' => ['$gte' => 2, '$lt' => 4]]],
        ['$sort' => ['_id' => 1]],
        ['$lookup' => ['from' => 'ordered', 'localField' => '_id', 'foreignField' => 'n', 'as' => 'same']],
    ]));
    $run->attempt('aggregate: facet', fn () => $aggregate([
        ['$match' => ['_id' => ['$lt' => 10]]],
        ['$facet' => ['count' => [['$count' => 'n']], 'least' => [['$sort' => ['_id' => 1]], ['$limit' => 1]]]],
    ]));
    $run->attempt('aggregate: out', fn () => $aggregate([['$match' => ['_id' => ['$lt' => 3]]], ['$out' => 'copied']]));
    $run->attempt('aggregate: out, read back', $copied);
    $run->attempt('aggregate: merge', fn () => $aggregate([
        ['$match' => ['_id' => ['$gte' => 2, '$lt' => 4]]],
        ['$project' => ['merged' => 'yes']],
        ['$merge' => ['into' => 'copied', 'whenMatched' => 'merge']],
    ]));
    $run->attempt('aggregate: merge, read back', $copied);
    if (!$run->stable) {
        $match = ['aggregate' => 'things', 'pipeline' => [['$match' => ['_id' => 3]]], 'cursor' => (object) []];
        $run->attempt(
            "aggregate: explain's keys",
            fn () => array_keys((array) $run->reply(['explain' => $match, 'verbosity' => 'queryPlanner'])),
        );
    }
}

/** A cursor that stays open at its end and waits for more documents. */
final class Following
{
    private bool $begun = false;

    public function __construct(private readonly Cursor $cursor)
    {
    }

    /** The next document, or null after many attempts without one. */
    public function next(): ?object
    {
        for ($tries = 0; $tries < 20; $tries++) {
            // The cursor must not advance earlier: even the first call waits if there is no
            // document.
            $this->begun ? $this->cursor->next() : $this->cursor->rewind();
            $this->begun = true;
            if ($this->cursor->valid()) {
                return $this->cursor->current();
            }
        }
        return null;
    }
}

function tail(Run $run): array
{
    $insert = fn (int $from, int $to) => $run->write('log', function ($bulk) use ($from, $to) {
        foreach (range($from, $to) as $n) {
            $bulk->insert(['_id' => $n]);
        }
    });
    $run->reply(['create' => 'log', 'capped' => true, 'size' => 65536]);
    $insert(0, 2);
    $query = new Query([], ['tailable' => true, 'awaitData' => true, 'maxAwaitTimeMS' => 100]);
    $following = new Following($run->manager->executeQuery($run->namespace('log'), $query));
    $seen = [$following->next(), $following->next(), $following->next()];
    // At its end the cursor stays open and returns documents that are inserted later.
    $insert(3, 4);
    return [...$seen, $following->next(), $following->next()];
}

function cursors(Run $run): void
{
    $run->attempt('cursors: closed before its end', function () use ($run) {
        $query = new Query(['group' => 3], ['batchSize' => 2, 'sort' => ['_id' => 1]]);
        $cursor = $run->manager->executeQuery($run->namespace('things'), $query);
        $cursor->rewind();
        // PHP destroys the cursor at the end of the function, which also kills it on the server.
        return $cursor->current();
    });
    $run->attempt('cursors: tailable', fn () => tail($run));
}
