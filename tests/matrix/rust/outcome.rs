//! The outcome of a step, as one line of JSON.

use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind},
};
use serde::Serialize;
use serde_json::{Value, json};

/// One line of output for each step so far.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<String>);

impl Steps {
    /// Runs a step and records its outcome.
    pub(super) async fn step(
        &mut self,
        name: &str,
        action: impl AsyncFnOnce() -> Result<Value, Error>,
    ) {
        let line = match action().await {
            Ok(value) => json!({"step": name, "value": value}),
            Err(error) => json!({"step": name, "error": error_json(&error)}),
        };
        self.0.push(line.to_string());
    }

    pub(super) fn lines(self) -> Vec<String> {
        self.0
    }
}

/// A value as extended JSON, which keeps the types of numbers.
pub(super) fn extended_json(value: impl Into<Bson>) -> Value {
    match value.into() {
        Bson::Int32(number) => json!({"$numberInt": number.to_string()}),
        Bson::Int64(number) => json!({"$numberLong": number.to_string()}),
        Bson::Double(number) => json!({"$numberDouble": number.to_string()}),
        Bson::Array(elements) => elements.into_iter().map(extended_json).collect(),
        Bson::Document(document) => {
            let fields = document.into_iter();
            fields
                .map(|(name, field)| (name, extended_json(field)))
                .collect()
        }
        other => plain(&other),
    }
}

/// A result of the driver, as the driver itself serializes it.
pub(super) fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("the driver's results serialize to JSON")
}

fn error_json(error: &Error) -> Value {
    let mut labels: Vec<_> = error.labels().iter().collect();
    labels.sort();
    let (code, name, message) = match error.kind.as_ref() {
        ErrorKind::Command(error) => (
            Some(error.code),
            Some(&error.code_name),
            error.message.clone(),
        ),
        kind => (None, None, kind.to_string()),
    };
    let reply = error.server_response().map(|reply| {
        extended_json(
            Document::try_from(reply.as_ref()).expect("the driver has already parsed the reply"),
        )
    });
    json!({"code": code, "codeName": name, "labels": labels, "message": message, "reply": reply})
}
