//! The traffic of a small shop: writes, reads, a long cursor, aggregations and transactions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::TryStreamExt as _;
use mongodb::{
    Client, Collection, IndexModel,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use tokio::{time::interval, try_join};

use super::DemoError;
use seawall_locks::Mutex;

/// The database that the demonstration works in.
pub(super) const DATABASE: &str = "shop";

/// The collection that most operations use.
pub(super) const ORDERS: &str = "orders";

/// The number of commands that the driver has sent, by name. The driver does not report handshakes
/// and logins.
#[derive(Debug, Default)]
pub(super) struct SentCommands(Mutex<BTreeMap<String, u64>>);

impl SentCommands {
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().clone()
    }

    fn count(&self, event: &CommandEvent) {
        if let CommandEvent::Started(started) = event {
            let name = started.command_name.clone();
            *self.0.lock().entry(name).or_default() += 1;
        }
    }
}

/// Returns `options` with a handler that counts every command sent.
pub(super) fn counted(options: &ClientOptions, sent: &Arc<SentCommands>) -> ClientOptions {
    let mut options = options.clone();
    let sent = Arc::clone(sent);
    options.command_event_handler = Some(EventHandler::callback(move |event| sent.count(&event)));
    options
}

/// Runs each kind of operation of the demonstration through one client. The client is shut down at
/// the end, so that it ends its sessions.
pub(super) async fn drive(options: ClientOptions) -> Result<(), DemoError> {
    let client = Client::with_options(options)?;
    let orders = client.database(DATABASE).collection::<Document>(ORDERS);
    write(&orders).await?;
    read(&orders).await?;
    aggregate(&orders).await?;
    for number in 0..TRANSACTIONS {
        transact(&client, number).await?;
    }
    client.shutdown().await;
    Ok(())
}

/// Generates light traffic of two applications until the future is dropped, so that the dashboard
/// and `seawall top` have something to show.
pub(super) async fn keep_going(options: &ClientOptions) -> Result<(), DemoError> {
    let [web, jobs] = ["shop-web", "shop-jobs"].map(|application| {
        let mut options = options.clone();
        options.app_name = Some(application.to_owned());
        Client::with_options(options)
    });
    let (web, jobs) = (web?, jobs?);
    try_join!(visit(&web), visit(&web), visit(&web), work(&jobs))?;
    Ok(())
}

/// The operations of the shop's customers. Each call of this function runs about 22 operations per
/// second.
async fn visit(client: &Client) -> Result<(), DemoError> {
    let orders = client.database(DATABASE).collection::<Document>(ORDERS);
    let mut due = interval(Duration::from_millis(100));
    for number in (0..ORDER_COUNT - 10).cycle() {
        due.tick().await;
        orders.find_one(doc! { "_id": number }).await?;
        let seen = doc! { "$inc": { "views": 1 } };
        orders.update_one(doc! { "_id": number }, seen).await?;
        if number % 4 == 0 {
            let of_customer = orders.find(doc! { "customer": number % 40, "status": "open" });
            let newest = of_customer.sort(doc! { "_id": -1 }).limit(5).await?;
            newest.try_collect::<Vec<_>>().await?;
        }
    }
    Ok(())
}

/// The operations of a job: every two seconds, the job aggregates the orders and then reads all of
/// them.
async fn work(client: &Client) -> Result<(), DemoError> {
    let orders = client.database(DATABASE).collection::<Document>(ORDERS);
    let mut due = interval(Duration::from_secs(2));
    loop {
        due.tick().await;
        aggregate(&orders).await?;
        let all = orders.find(doc! {}).batch_size(BATCH_SIZE).await?;
        all.try_collect::<Vec<_>>().await?;
    }
}

async fn write(orders: &Collection<Document>) -> Result<(), DemoError> {
    let documents = (0..ORDER_COUNT).map(|number| {
        doc! {
            "_id": number,
            "customer": number % 40,
            "status": if number % 3 == 0 { "open" } else { "paid" },
            "lines": [{ "article": number % 7, "amount": 1 + number % 4 }],
        }
    });
    orders.insert_many(documents).await?;
    let by_customer = IndexModel::builder().keys(doc! { "customer": 1 }).build();
    orders.create_index(by_customer).await?;
    for number in 0..60 {
        let paid = doc! { "$set": { "status": "paid" } };
        orders.update_one(doc! { "_id": number }, paid).await?;
    }
    let of_customer = doc! { "customer": 7, "status": "open" };
    let flagged = doc! { "$set": { "reminder": true } };
    orders.update_many(of_customer, flagged).await?;
    for number in 0..10 {
        orders
            .find_one_and_update(doc! { "_id": number }, doc! { "$inc": { "version": 1 } })
            .await?;
        orders
            .delete_one(doc! { "_id": ORDER_COUNT - 1 - number })
            .await?;
    }
    Ok(())
}

async fn read(orders: &Collection<Document>) -> Result<(), DemoError> {
    for number in 0..200 {
        orders.find_one(doc! { "_id": number }).await?;
    }
    for customer in 0..20 {
        let open = doc! { "customer": customer, "status": { "$in": ["open", "paid"] } };
        let newest = orders.find(open).sort(doc! { "_id": -1 }).limit(5).await?;
        newest.try_collect::<Vec<_>>().await?;
    }
    let all = orders.find(doc! {}).batch_size(BATCH_SIZE).await?;
    let found = all.try_collect::<Vec<_>>().await?.len();
    let expected = usize::try_from(ORDER_COUNT - 10).unwrap_or_default();
    if found == expected {
        Ok(())
    } else {
        Err(DemoError::CursorCutShort { expected, found })
    }
}

async fn aggregate(orders: &Collection<Document>) -> Result<(), DemoError> {
    for least in 0..20 {
        let by_customer = [
            doc! { "$match": { "customer": { "$gte": least } } },
            doc! { "$group": { "_id": "$customer", "orders": { "$sum": 1 } } },
            doc! { "$sort": { "orders": -1 } },
        ];
        let groups = orders.aggregate(by_customer).await?;
        groups.try_collect::<Vec<_>>().await?;
    }
    orders.count_documents(doc! { "status": "open" }).await?;
    orders.distinct("status", doc! {}).await?;
    Ok(())
}

/// The payment of one order: two writes in two collections, in one transaction.
async fn transact(client: &Client, number: i32) -> Result<(), DemoError> {
    let database = client.database(DATABASE);
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let payment = doc! { "order": number, "amount": 10 };
    database
        .collection::<Document>("payments")
        .insert_one(payment)
        .session(&mut session)
        .await?;
    database
        .collection::<Document>(ORDERS)
        .update_one(doc! { "_id": number }, doc! { "$set": { "settled": true } })
        .session(&mut session)
        .await?;
    session.commit_transaction().await?;
    Ok(())
}

const ORDER_COUNT: i32 = 500;
/// Batch size of the long cursor. It is small, so that the cursor needs ten batches.
const BATCH_SIZE: u32 = 50;
const TRANSACTIONS: i32 = 5;
