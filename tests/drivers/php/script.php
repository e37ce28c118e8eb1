<?php
/*
 * What an application does, by PHP's MongoDB extension; prints one line of JSON a step, as ../scenarios.md has it.
 *
 * Run: php script.php URI DATABASE stable|plain
 *
 * Only the extension is used (MongoDB\Driver), not the library above it, which has to be fetched besides. So what the
 * extension has no call of its own for goes as a command: counts, find and modify, aggregation, everything about
 * indexes and collections, and the change stream, which is the cursor of an aggregation.
 *
 * Left out, since the extension has nothing for them: "gridfs", and the callback form of "transactions".
 *
 * Values are canonical extended JSON of what the extension gave. PHP has one integer type, so that a 64-bit integer
 * that fits 32 bits is told as one of 32 bits. An error has, besides its code, name, labels and message, its class, the
 * server's reply or the result of the write, and the error behind it.
 */

declare(strict_types=1);

require __DIR__ . '/run.php';
require __DIR__ . '/reads.php';
require __DIR__ . '/writes.php';
require __DIR__ . '/bulks.php';
require __DIR__ . '/aggregates.php';
require __DIR__ . '/sessions.php';
require __DIR__ . '/changestream.php';
require __DIR__ . '/errors.php';
require __DIR__ . '/administration.php';

function main(array $arguments): void
{
    if (count($arguments) !== 4) {
        fwrite(STDERR, "usage: $arguments[0] URI DATABASE stable|plain\n");
        exit(2);
    }
    // A warning is a fault of the program, and ends it as such.
    set_error_handler(function (int $level, string $message, string $file, int $line): never {
        throw new ErrorException($message, 0, $level, $file, $line);
    });
    $run = new Run($arguments[1], $arguments[2], $arguments[3] === 'stable');
    status($run);
    inserts($run);
    types($run);
    findOptions($run);
    readConcerns($run);
    readPreferences($run);
    counts($run);
    updates($run);
    findAndModify($run);
    deletes($run);
    bulks($run);
    aggregates($run);
    cursors($run);
    sessions($run);
    transactions($run);
    changeStream($run);
    unacknowledged($run);
    large($run);
    errors($run);
    administration($run);
    drop($run);
}

main($argv);
