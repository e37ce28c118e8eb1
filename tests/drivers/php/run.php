<?php
/* The shared parts of all steps: the connection, and the line that a step prints. */

declare(strict_types=1);

use MongoDB\Driver\BulkWrite;
use MongoDB\Driver\Command;
use MongoDB\Driver\Cursor;
use MongoDB\Driver\Exception\BulkWriteException;
use MongoDB\Driver\Exception\CommandException;
use MongoDB\Driver\Exception\Exception as DriverException;
use MongoDB\Driver\Exception\RuntimeException as DriverRuntimeException;
use MongoDB\Driver\Manager;
use MongoDB\Driver\Query;
use MongoDB\Driver\ServerApi;
use MongoDB\Driver\WriteResult;

use function MongoDB\BSON\fromPHP;
use function MongoDB\BSON\toCanonicalExtendedJSON;

final class Run
{
    public readonly Manager $manager;

    public function __construct(string $uri, public readonly string $database, public readonly bool $stable)
    {
        $options = $stable ? ['serverApi' => new ServerApi(ServerApi::V1, strict: true)] : [];
        $this->manager = new Manager($uri, [], $options);
    }

    public function namespace(string $collection): string
    {
        return "$this->database.$collection";
    }

    /** The documents found. The run's options are the read preference and the session. */
    public function find(string $collection, array $filter, array $options = [], array $runOptions = []): array
    {
        return $this->manager->executeQuery(
            $this->namespace($collection),
            new Query($filter, $options),
            $runOptions,
        )->toArray();
    }

    /** The cursor of a command. It has one document if the command opens no cursor. */
    public function cursor(array $command, array $options = [], array $commandOptions = []): Cursor
    {
        $command = new Command($command, $commandOptions);
        return $this->manager->executeCommand($this->database, $command, $options);
    }

    public function command(array $command, array $options = []): array
    {
        return $this->cursor($command, $options)->toArray();
    }

    public function reply(array $command, array $options = []): object
    {
        return $this->command($command, $options)[0];
    }

    /** Executes a bulk with the writes that the function adds. */
    public function write(string $collection, Closure $add, array $bulkOptions = [], array $options = []): object
    {
        $bulk = new BulkWrite($bulkOptions);
        $add($bulk);
        return resultFields($this->manager->executeBulkWrite($this->namespace($collection), $bulk, $options));
    }

    /** Prints the step's line: the action's value, or the driver's error. */
    public function attempt(string $step, Closure $action): void
    {
        try {
            $line = ['step' => $step, 'value' => $action()];
            print toCanonicalExtendedJSON(fromPHP($line)) . "\n";
        } catch (DriverException $error) {
            // This program writes the code and the labels as plain JSON. The driver writes the
            // reply as extended JSON.
            print '{ "step" : ' . json_encode($step) . ', "error" : ' . errorJson($error) . " }\n";
        }
    }
}

function errorJson(DriverException $error): string
{
    $known = ['RetryableWriteError', 'TransientTransactionError', 'UnknownTransactionCommitResult'];
    $labels = $error instanceof DriverRuntimeException ? array_filter($known, $error->hasErrorLabel(...)) : [];
    $reply = null;
    if ($error instanceof CommandException) {
        $reply = $error->getResultDocument();
    } elseif ($error instanceof BulkWriteException) {
        $reply = resultFields($error->getWriteResult());
    }
    $behind = $error->getPrevious();
    $fields = [
        'code' => json_encode($error->getCode()),
        'codeName' => json_encode($reply->codeName ?? null),
        'labels' => json_encode(array_values($labels)),
        'message' => json_encode($error->getMessage(), JSON_UNESCAPED_SLASHES),
        'class' => json_encode($error::class, JSON_UNESCAPED_SLASHES),
        'reply' => $reply === null ? 'null' : toCanonicalExtendedJSON(fromPHP($reply)),
        'previous' => $behind instanceof DriverException ? errorJson($behind) : 'null',
    ];
    $parts = array_map(fn (string $key, string $value) => "\"$key\": $value", array_keys($fields), $fields);
    return '{' . implode(', ', $parts) . '}';
}

/** All fields of a write's result. An unacknowledged result has only the field `acknowledged`. */
function resultFields(WriteResult $result): object
{
    if (!$result->isAcknowledged()) {
        return (object) ['acknowledged' => false];
    }
    $error = fn ($e) => (object) ['code' => $e->getCode(), 'message' => $e->getMessage(), 'info' => $e->getInfo()];
    $concern = $result->getWriteConcernError();
    return (object) [
        'acknowledged' => true,
        'inserted' => $result->getInsertedCount(),
        'matched' => $result->getMatchedCount(),
        'modified' => $result->getModifiedCount(),
        'deleted' => $result->getDeletedCount(),
        'upserted' => $result->getUpsertedCount(),
        'upsertedIds' => (object) $result->getUpsertedIds(),
        'writeErrors' => array_map(
            fn ($e) => (object) (['index' => $e->getIndex()] + (array) $error($e)),
            $result->getWriteErrors(),
        ),
        'writeConcernError' => $concern === null ? null : $error($concern),
    ];
}
