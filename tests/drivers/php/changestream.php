<?php
/* A change stream, which is the cursor of an aggregation. It is read, and then resumed. */

declare(strict_types=1);

function watch(Run $run, array $options = []): Following
{
    return new Following($run->cursor([
        'aggregate' => 'things',
        'pipeline' => [['$changeStream' => (object) $options], ['$match' => ['documentKey._id' => 'watched']]],
        'cursor' => (object) [],
    ], commandOptions: ['maxAwaitTimeMS' => 1000]));
}

function changeStream(Run $run): void
{
    $stream = null;
    $second = null;
    $change = fn (Closure $add) => $run->write('things', $add);
    $run->attempt('change stream: insert', function () use ($run, $change, &$stream) {
        $stream = watch($run);
        $change(fn ($bulk) => $bulk->insert(['_id' => 'watched', 'n' => 1]));
        $change(fn ($bulk) => $bulk->update(['_id' => 'watched'], ['$inc' => ['n' => 1]]));
        $change(fn ($bulk) => $bulk->delete(['_id' => 'watched']));
        return $stream->next();
    });
    $run->attempt('change stream: update', function () use (&$stream, &$second) {
        return $second = $stream?->next();
    });
    $run->attempt('change stream: delete', fn () => $stream?->next());
    $run->attempt(
        'change stream: resumed after the second event',
        fn () => $second ? watch($run, ['resumeAfter' => $second->_id])->next() : null,
    );
}
