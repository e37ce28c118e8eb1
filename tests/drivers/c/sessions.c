/* Sessions and transactions. */
#include "common.h"

static bool
insert (mongoc_collection_t *collection, mongoc_client_session_t *session, const char *id, bson_error_t *error)
{
   return mongoc_collection_insert_one (collection, json ("{'_id': '%s'}", id), within (session, empty ()), NULL,
                                        error);
}

/* Every write adds one to a counter, so the sums show which writes took effect. */
static bool
add_one (run_t *run, mongoc_client_session_t *session, bson_t *reply, bson_error_t *error)
{
   return mongoc_collection_update_one (run->things, json ("{'_id': 1}"), json ("{'$inc': {'sum': 1}}"),
                                        within (session, empty ()), reply, error);
}

static void
tell_sum (const char *step, run_t *run, mongoc_client_session_t *session)
{
   bson_t *options = json ("{'projection': {'sum': 1}}");
   tell_documents (step, run->things, json ("{'_id': 1}"), session ? within (session, options) : options);
}

void
sessions (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_client_session_t *causal = session_of (run, false);
   mongoc_read_prefs_t *elsewhere = mongoc_read_prefs_new (MONGOC_READ_SECONDARY_PREFERRED);
   tell ("sessions: causal write", add_one (run, causal, &reply, &error), &reply, &error);
   tell_cursor ("sessions: causal read",
                mongoc_collection_find_with_opts (
                   run->things, json ("{'_id': 1}"),
                   within (causal, json ("{'readConcern': {'level': 'majority'}, 'projection': {'sum': 1}}")),
                   elsewhere));
   mongoc_read_prefs_destroy (elsewhere);

   mongoc_client_session_t *snapshot = session_of (run, true);
   tell_sum ("sessions: snapshot, before a write", run, snapshot);
   tell ("sessions: write outside the snapshot", add_one (run, causal, &reply, &error), &reply, &error);
   tell_sum ("sessions: snapshot, after the write", run, snapshot);
   tell_sum ("sessions: outside the snapshot", run, causal);
   mongoc_client_session_destroy (snapshot);
   mongoc_client_session_destroy (causal);
}

static bool
begin (mongoc_client_session_t *session, bson_error_t *error)
{
   return mongoc_client_session_start_transaction (session, NULL, error);
}

static void
commit_and_abort (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_client_session_t *session = session_of (run, false);
   bool ok = begin (session, &error) && insert (run->things, session, "committed", &error) &&
             add_one (run, session, NULL, &error);
   if (ok) {
      ok = mongoc_client_session_commit_transaction (session, &reply, &error);
      tell ("transactions: commit", ok, &reply, &error);
   } else {
      say_error ("transactions: commit", &error, NULL);
   }
   tell_documents ("transactions: commit, read back", run->things, json ("{'_id': {'$in': [1, 'committed']}}"),
                   json ("{'sort': {'_id': 1}, 'projection': {'sum': 1}}"));

   if (begin (session, &error) && insert (run->things, session, "aborted", &error)) {
      tell_documents ("transactions: read before the abort", run->things, json ("{'_id': 'aborted'}"),
                      within (session, empty ()));
   } else {
      say_error ("transactions: read before the abort", &error, NULL);
   }
   if (mongoc_client_session_abort_transaction (session, &error)) {
      tell_documents ("transactions: abort", run->things, json ("{'_id': 'aborted'}"), NULL);
   } else {
      say_error ("transactions: abort", &error, NULL);
   }
   ok = add_one (run, session, &reply, &error);
   tell ("transactions: operation after abort", ok, &reply, &error);
   mongoc_client_session_destroy (session);
}

static bool
in_callback (mongoc_client_session_t *session, void *context, bson_t **reply, bson_error_t *error)
{
   run_t *run = context;
   BSON_UNUSED (reply);
   return insert (run->things, session, "by callback", error) && add_one (run, session, NULL, error);
}

static void
by_callback (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_client_session_t *session = session_of (run, false);
   bool ok = mongoc_client_session_with_transaction (session, in_callback, NULL, run, &reply, &error);
   tell ("transactions: callback", ok, &reply, &error);
   tell_documents ("transactions: callback, read back", run->things, json ("{'_id': 'by callback'}"),
                   within (session, empty ()));
   mongoc_client_session_destroy (session);
}

static void
conflict (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_client_session_t *first = session_of (run, false);
   mongoc_client_session_t *second = session_of (run, false);
   bool ok = begin (first, &error) && add_one (run, first, NULL, &error) && begin (second, &error);
   if (ok) {
      ok = add_one (run, second, &reply, &error);
      tell ("transactions: write conflict", ok, &reply, &error);
   } else {
      say_error ("transactions: write conflict", &error, NULL);
   }
   /* The server has already ended the second transaction. The driver does not return the reply to
    * the abort. */
   mongoc_client_session_abort_transaction (second, NULL);
   ok = mongoc_client_session_commit_transaction (first, &reply, &error);
   tell ("transactions: first transaction committed", ok, &reply, &error);
   if (begin (second, &error) && add_one (run, second, NULL, &error)) {
      ok = mongoc_client_session_commit_transaction (second, &reply, &error);
      tell ("transactions: second transaction repeated", ok, &reply, &error);
   } else {
      say_error ("transactions: second transaction repeated", &error, NULL);
   }
   tell_sum ("transactions: both written", run, NULL);
   mongoc_client_session_destroy (second);
   mongoc_client_session_destroy (first);
}

/* An error ends a transaction on the server. So later operations in this transaction fail with
 * NoSuchTransaction. */
static void
after_error (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_client_session_t *session = session_of (run, false);
   bool ok = begin (session, &error);
   require (ok, "transaction", &error);
   ok = mongoc_collection_insert_one (run->things, json ("{'_id': 1}"), within (session, empty ()), &reply, &error);
   tell ("transactions: duplicate key in a transaction", ok, &reply, &error);
   ok = add_one (run, session, &reply, &error);
   tell ("transactions: operation after the server's abort", ok, &reply, &error);
   mongoc_client_session_abort_transaction (session, NULL);
   mongoc_client_session_destroy (session);
}

void
transactions (run_t *run)
{
   commit_and_abort (run);
   by_callback (run);
   conflict (run);
   after_error (run);
}
