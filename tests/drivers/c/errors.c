/* Steps in which an error is expected, and the errors that they print. */
#include "common.h"

static void
tell_insert (const char *step, mongoc_collection_t *collection, bson_t *document, bson_t *options)
{
   bson_t reply;
   bson_error_t error;
   bool ok = mongoc_collection_insert_one (collection, document, options, &reply, &error);
   tell (step, ok, &reply, &error);
}

static void
data_errors (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   tell_insert ("errors: duplicate key", run->things, json ("{'_id': 1}"), NULL);
   tell_documents ("errors: unknown operator", run->things, json ("{'$nope': 1}"), NULL);
   tell_command ("errors: unknown command", run, run->name, json ("{'noSuchCommand': 1}"), NULL);
   mongoc_collection_t *elsewhere = mongoc_client_get_collection (run->client, "elsewhere", "things");
   tell_insert ("errors: not authorised", elsewhere, json ("{'_id': 1}"), NULL);
   mongoc_collection_destroy (elsewhere);
   tell_documents ("errors: time limit", run->things,
                   json ("{'$expr': {'$gte': [{'$reduce': {'input': {'$range': [0, 20000]}, 'initialValue': 0,"
                         " 'in': {'$add': ['$$value', '$$this']}}}, 0]}}"),
                   json ("{'maxTimeMS': 50}"));
   mongoc_collection_t *checked = mongoc_database_create_collection (
      run->database, "checked", json ("{'validator': {'$jsonSchema': {'required': ['name']}}}"), &error);
   require (checked, "collection with a validator", &error);
   tell_insert ("errors: document validation", checked, json ("{'_id': 1}"), NULL);
   mongoc_collection_destroy (checked);
   bool ok = mongoc_collection_update_one (run->things, json ("{'_id': 1}"), json ("{'$set': {'_id': 2}}"), NULL,
                                           &reply, &error);
   tell ("errors: immutable field", ok, &reply, &error);
}

static void
catalog_errors (run_t *run)
{
   bson_error_t error;
   mongoc_collection_t *again = mongoc_database_create_collection (
      run->database, "checked", json ("{'validator': {'n': 1}}"), &error);
   if (again) {
      say_text ("errors: collection exists", "created");
      mongoc_collection_destroy (again);
   } else {
      say_error ("errors: collection exists", &error, NULL);
   }
   tell_command ("errors: index conflict, first index", run, run->name,
                 json ("{'createIndexes': 'checked', 'indexes': [{'key': {'a': 1}, 'name': 'same'}]}"), NULL);
   tell_command ("errors: index conflict", run, run->name,
                 json ("{'createIndexes': 'checked', 'indexes': [{'key': {'b': 1}, 'name': 'same'}]}"), NULL);
   mongoc_collection_t *dotted = collection_named (run, ".things");
   tell_insert ("errors: invalid namespace", dotted, json ("{'_id': 1}"), NULL);
   mongoc_collection_destroy (dotted);
}

static void
protocol_errors (run_t *run)
{
   tell_command ("errors: cursor not found", run, run->name,
                 json ("{'getMore': {'$numberLong': '5000000001'}, 'collection': 'things'}"), NULL);
   tell_insert ("errors: write concern", run->things, json ("{'_id': 'too many members'}"),
                json ("{'writeConcern': {'w': 50, 'wtimeout': 100}}"));
   tell_command ("errors: invalid cursor id", run, run->name, json ("{'getMore': 'text', 'collection': 'things'}"),
                 NULL);
   mongoc_client_session_t *session = session_of (run, false);
   tell_command ("errors: transaction never begun", run, "admin",
                 json ("{'commitTransaction': 1, 'txnNumber': {'$numberLong': '5000000001'}, 'autocommit': false}"),
                 within (session, empty ()));
   mongoc_client_session_destroy (session);
}

void
errors (run_t *run)
{
   data_errors (run);
   catalog_errors (run);
   protocol_errors (run);
}
