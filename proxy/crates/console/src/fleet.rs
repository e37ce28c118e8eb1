//! The admin addresses of one or several instances of Seawall, and an admin client for each
//! address.

use std::{collections::HashSet, path::PathBuf};

use clap::Args;
use seawall_api::AdminClient;

use crate::admin_client::{Endpoint, EndpointError, TlsFiles};

/// The admin addresses of one or several running proxies, and their tokens.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoints {
    /// The admin addresses of running proxies. Repeat the option, or separate addresses by commas,
    /// to merge the figures of several instances.
    #[arg(
        long = "admin",
        value_name = "URL",
        env = "SEAWALL_ADMIN_URL",
        value_delimiter = ',',
        default_value = Endpoint::DEFAULT_URL
    )]
    urls: Vec<String>,
    /// The file that contains the token of the admin address: one file for all addresses, or one
    /// for each in the same order.
    #[arg(long = "token-file", value_name = "FILE", value_delimiter = ',')]
    token_files: Vec<PathBuf>,
    #[command(flatten)]
    tls: TlsFiles,
}

impl Endpoints {
    /// Creates an admin client for each address.
    pub(super) fn fleet(&self) -> Result<Fleet, EndpointError> {
        let token_file = |place| match self.token_files.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            files if files.len() == self.urls.len() => Ok(files.get(place).cloned()),
            files => Err(EndpointError::TokenFiles {
                files: files.len(),
                addresses: self.urls.len(),
            }),
        };
        let mut known = HashSet::new();
        let mut clients = Vec::new();
        for (place, url) in self.urls.iter().enumerate() {
            let client = Endpoint::new(url, token_file(place)?, self.tls.clone()).client()?;
            if !known.insert(client.address().to_owned()) {
                return Err(EndpointError::Repeated {
                    address: client.address().to_owned(),
                });
            }
            clients.push(client);
        }
        Ok(Fleet { clients })
    }
}

/// The admin clients of one or several instances.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    clients: Vec<AdminClient>,
}

impl Fleet {
    /// One admin client for each instance.
    pub(super) fn clients(&self) -> &[AdminClient] {
        &self.clients
    }

    /// The address of the only instance, or the number of instances.
    pub(super) fn name(&self) -> String {
        match self.clients.as_slice() {
            [one] => one.address().to_owned(),
            several => format!("{} instances", several.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn endpoints(arguments: &[&str]) -> Endpoints {
        let command = Endpoints::augment_args(clap::Command::new("top"));
        let matches = command.get_matches_from([&["top"], arguments].concat());
        Endpoints::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn admin_option_may_be_repeated_and_may_contain_several_addresses() {
        let addresses = |arguments: &[&str]| {
            let fleet = endpoints(arguments).fleet().unwrap();
            let clients = fleet.clients().iter();
            clients.map(|c| c.address().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&["--admin", "a:1"]), ["http://a:1"]);
        let all = ["http://a:1", "http://b:2", "http://c:3"];
        assert_eq!(addresses(&["--admin", "a:1,b:2", "--admin=c:3"]), all);
        let fleet = endpoints(&["--admin", "a:1,b:2"]).fleet().unwrap();
        assert_eq!(fleet.name(), "2 instances");
    }

    #[test]
    fn address_given_twice_is_refused() {
        let error = endpoints(&["--admin", "a:1,http://a:1/"])
            .fleet()
            .unwrap_err();
        assert_eq!(error.to_string(), "--admin: http://a:1 is given twice");
    }

    #[test]
    fn addresses_share_one_token_file_or_each_address_has_its_own() {
        let two = ["--admin", "a:1,b:2,c:3", "--token-file", "x,y"];
        let error = endpoints(&two).fleet().unwrap_err();
        assert_eq!(
            error.to_string(),
            "--token-file: 2 files for 3 addresses; give one file, or one for each address"
        );
        let one = ["--admin", "a:1,b:2", "--token-file", "/nowhere/token"];
        let error = endpoints(&one).fleet().unwrap_err();
        assert!(error.to_string().starts_with("--token-file /nowhere/token"));
    }
}
