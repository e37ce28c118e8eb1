//! Tests of Seawall's own command `seawall`, which mongosh sends. With this command, operators see
//! Seawall's state without another tool.

use seawall_tests::mongod::{NewUser, create_user, unique_name};
use serde_json::{Value, json};

use crate::{
    case::Case,
    language::Language,
    pair::{PASSWORD, SharedPair, Target},
    program::Step,
};

/// Runs the script `seawall.js` in mongosh, as a new user with these roles on `admin`. Returns the
/// steps of the script.
async fn ask(pair: &SharedPair, roles: &[&str]) -> Vec<Step> {
    let name = unique_name("mongosh");
    let user = NewUser::new("admin", &name, PASSWORD);
    let user = roles
        .iter()
        .fold(user, |user, role| user.role(role, "admin"));
    create_user(&pair.set.administrator().await.unwrap(), &user)
        .await
        .unwrap();
    let program = Language::prepare_mongosh_script("seawall.js").await;
    let uri = pair.uri(&name, &Case::PLAIN, Target::Seawall);
    program.run(&uri, &name, Case::PLAIN.api).await
}

/// The code of a step's error; null if the step succeeded.
fn code(step: &Step) -> &Value {
    &step.outcome["error"]["code"]
}

#[tokio::test]
#[ignore = "needs Node: cargo test --test matrix -- --include-ignored"]
async fn mongosh_shows_the_state_of_seawall_only_to_users_with_the_role_cluster_monitor() {
    let pair = SharedPair::start_shared(false).await;
    let steps = ask(&pair, &["clusterMonitor"]).await;
    assert_eq!(steps.len(), 8);
    let (reload, topics) = steps.split_last().unwrap();
    for step in topics {
        assert_eq!(*code(step), Value::Null, "{}: {}", step.name, step.outcome);
        assert_eq!(step.outcome["value"]["ok"], json!(1), "{}", step.outcome);
    }
    let value = |name: &str| {
        let step = steps.iter().find(|step| step.name == name).unwrap();
        &step.outcome["value"]
    };
    assert_eq!(value("status")["deployment"], "ReplicaSetWithPrimary");
    let pools = value("pools")["pools"].as_array().unwrap();
    assert_eq!(pools.len(), pair.set.members().len());
    assert!(!value("clients")["clients"].as_array().unwrap().is_empty());
    // A user who may only monitor can read the state, but must not reload the configuration.
    assert_eq!(*code(reload), json!(13), "{}", reload.outcome);

    for step in ask(&pair, &["readWriteAnyDatabase"]).await {
        assert_eq!(*code(&step), json!(13), "{}: {}", step.name, step.outcome);
        assert_eq!(step.outcome["error"]["codeName"], "Unauthorized");
    }
    // A successful reload is tested in `tests/e2e/own_commands.rs`, because this Seawall has no
    // configuration file.
}
