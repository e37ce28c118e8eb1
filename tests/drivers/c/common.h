/* The shared parts of all steps: the run's handles, documents written as JSON, and the line that a
 * step prints. */
#ifndef COMMON_H
#define COMMON_H

#include <mongoc/mongoc.h>

typedef struct {
   mongoc_client_t *client;
   const char *name; /* the database's name */
   mongoc_database_t *database;
   mongoc_collection_t *things;
   bool stable;
} run_t;

/* Documents and values of one group of steps. forget() at the group's end frees them. */
bson_t *json (const char *format, ...) BSON_GNUC_PRINTF (1, 2);
bson_t *empty (void);
bson_t *within (mongoc_client_session_t *session, bson_t *options);
void forget (void);

/* Appends to a BSON array, which is a document with the field names 0, 1, 2, ... */
void push (bson_t *list, const bson_t *document);
void push_keys (bson_t *list, const bson_t *document);

/* Prints a step's line: its value, or its error. */
void say (const char *step, const bson_t *value);
void say_list (const char *step, const bson_t *list);
void say_field (const char *step, const bson_t *document, const char *field);
void say_text (const char *step, const char *value);
void say_number (const char *step, int64_t value);
void say_error (const char *step, const bson_error_t *error, const bson_t *reply);

/* Prints the outcome of a call with a reply, and destroys the reply. */
void tell (const char *step, bool ok, bson_t *reply, const bson_error_t *error);

/* Reads a cursor to its end, prints the documents or the error, and destroys the cursor. */
void tell_cursor (const char *step, mongoc_cursor_t *cursor);
void tell_documents (const char *step, mongoc_collection_t *collection, bson_t *filter, bson_t *options);

/* Runs a command and prints its whole reply. */
void tell_command (const char *step, run_t *run, const char *database, bson_t *command, bson_t *options);

mongoc_collection_t *collection_named (run_t *run, const char *name);

/* A causally consistent session, or a snapshot session. */
mongoc_client_session_t *session_of (run_t *run, bool snapshot);

/* Ends the program after a bug of the program or a failure of its environment, which are not
 * outcomes of a step. */
void require (bool ok, const char *what, const bson_error_t *error);

void sha256_hex (const uint8_t *bytes, size_t length, char hex[65]);

/* The groups of steps, in order. */
void status (run_t *run);
void inserts (run_t *run);
void types (run_t *run);
void find_options (run_t *run);
void read_concerns (run_t *run);
void read_preferences (run_t *run);
void counts (run_t *run);
void updates (run_t *run);
void find_and_modify (run_t *run);
void deletes (run_t *run);
void bulks (run_t *run);
void aggregates (run_t *run);
void cursors (run_t *run);
void sessions (run_t *run);
void transactions (run_t *run);
void change_stream (run_t *run);
void gridfs (run_t *run);
void unacknowledged (run_t *run);
void large (run_t *run);
void errors (run_t *run);
void administration (run_t *run);
void drop (run_t *run);

#endif
