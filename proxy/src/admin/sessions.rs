//! The sessions of browsers. A browser cannot send a token when it requests a page or an event
//! stream, so it exchanges the token for a cookie.
//!
//! A session keeps the token that began it, and the guard looks that token up for every request. So
//! a session ends when its token is removed or replaced, and never has more rights than its token.

use std::{collections::HashMap, fmt, time::Duration};

use axum::http::{HeaderMap, header, uri::Authority};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::{
    TryRng as _,
    rngs::{SysError, SysRng},
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use zeroize::Zeroizing;

use seawall_locks::Mutex;

/// The name of the cookie that contains the id of a session, without a port (see [`cookie_name`]).
pub(super) const COOKIE: &str = "seawall_session";

/// A session ends this long after its start: about one working day.
pub(super) const LIFETIME: Duration = Duration::from_secs(12 * 3_600);

/// Maximum number of sessions. The start of a further session ends the oldest session of the token
/// with the most sessions. So a caller who begins many sessions with one token ends sessions of
/// this token, and not the sessions of a token with fewer sessions.
pub(super) const MAX_SESSIONS: usize = 64;

/// The sessions of browsers.
#[derive(Default)]
pub struct Sessions {
    /// The sessions by the hash of their id. The ids themselves are not compared, because the time
    /// of a comparison could reveal a part of an id.
    by_hash: Mutex<HashMap<[u8; 32], BrowserSession>>,
}

struct BrowserSession {
    token: Zeroizing<String>,
    expires_at: Instant,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Sessions {
    /// Begins a session for the browser that sent a valid token. Returns the id of the session.
    ///
    /// # Errors
    /// If the operating system has no random numbers.
    pub(super) fn begin(&self, token: &str, now: Instant) -> Result<String, SysError> {
        let mut random = [0; 32];
        SysRng.try_fill_bytes(&mut random)?;
        let id = BASE64_URL_SAFE_NO_PAD.encode(random);
        let session = BrowserSession {
            token: Zeroizing::new(token.to_owned()),
            expires_at: now + LIFETIME,
        };
        let mut by_hash = self.by_hash.lock();
        by_hash.retain(|_, session| session.expires_at > now);
        if by_hash.len() >= MAX_SESSIONS
            && let Some(ended) = oldest_of_most(&by_hash)
        {
            by_hash.remove(&ended);
        }
        by_hash.insert(hash(&id), session);
        Ok(id)
    }

    /// The token of the session that a request names. `None` if the request names no session, or
    /// the session has expired.
    pub(super) fn token(&self, headers: &HeaderMap, now: Instant) -> Option<Zeroizing<String>> {
        let by_hash = self.by_hash.lock();
        let named = ids(headers).filter_map(|id| by_hash.get(&hash(id)));
        let mut lasting = named.filter(|session| session.expires_at > now);
        lasting.next().map(|session| session.token.clone())
    }

    /// Ends the session that a request names.
    pub(super) fn end(&self, headers: &HeaderMap) {
        let mut by_hash = self.by_hash.lock();
        ids(headers).for_each(|id| drop(by_hash.remove(&hash(id))));
    }
}

/// Finds the token with the most sessions. Returns the hash of the id of its oldest session.
fn oldest_of_most(by_hash: &HashMap<[u8; 32], BrowserSession>) -> Option<[u8; 32]> {
    let mut counts = HashMap::<&str, usize>::new();
    for session in by_hash.values() {
        *counts.entry(session.token.as_str()).or_default() += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let of_most = by_hash
        .iter()
        .filter(|(_, session)| session.token.as_str() == most);
    let oldest = of_most.min_by_key(|(_, session)| session.expires_at);
    oldest.map(|(hash, _)| *hash)
}

fn hash(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

/// The name of the cookie for a request. If the request names a port, the port is a part of the
/// name, because a browser keeps one cookie of each name for all ports of a host. Without the port,
/// a login to another Seawall on the same host would replace this cookie.
pub(super) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    match host.and_then(|host| host.port_u16()) {
        Some(port) => format!("{COOKIE}_{port}"),
        None => COOKIE.to_owned(),
    }
}

/// The session ids in the cookies of a request. A browser sends several cookies of one name if they
/// were set for different paths.
fn ids(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let name = cookie_name(headers);
    let lines = headers.get_all(header::COOKIE).iter();
    let cookies = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    cookies.filter_map(move |cookie| cookie.trim().strip_prefix(&*name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(id: &str) -> HeaderMap {
        let cookie = format!("other=1; {COOKIE}={id}; {COOKIE}s=x");
        HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())])
    }

    fn token(sessions: &Sessions, id: &str, now: Instant) -> Option<String> {
        let token = sessions.token(&with(id), now);
        token.map(|token| token.to_string())
    }

    #[test]
    fn a_session_keeps_its_token_until_the_session_expires_or_ends() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let id = sessions.begin("secret", now).unwrap();
        let other = sessions.begin("another", now).unwrap();
        assert_eq!(token(&sessions, &id, now).as_deref(), Some("secret"));
        assert_eq!(token(&sessions, &other, now).as_deref(), Some("another"));
        assert_eq!(token(&sessions, "unknown", now), None);
        assert_eq!(token(&sessions, &id, now + LIFETIME), None);
        sessions.end(&with(&id));
        assert_eq!(token(&sessions, &id, now), None);
        assert_eq!(token(&sessions, &other, now).as_deref(), Some("another"));
    }

    #[test]
    fn a_session_over_the_limit_ends_the_oldest_session() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let at = |index: usize| now + Duration::from_millis(u64::try_from(index).unwrap());
        let ids: Vec<_> = (0..=MAX_SESSIONS)
            .map(|index| sessions.begin("secret", at(index)).unwrap())
            .collect();
        let lasting: Vec<_> = ids.iter().map(|id| token(&sessions, id, at(0))).collect();
        assert_eq!(lasting.iter().flatten().count(), MAX_SESSIONS);
        assert_eq!(lasting[0], None);
    }

    #[test]
    fn many_sessions_of_one_token_do_not_end_a_session_of_another_token() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let oldest = sessions.begin("another", now).unwrap();
        let later = now + Duration::from_secs(1);
        for _ in 0..2 * MAX_SESSIONS {
            sessions.begin("secret", later).unwrap();
        }
        let kept = token(&sessions, &oldest, later);
        assert_eq!(kept.as_deref(), Some("another"));
        assert_eq!(sessions.by_hash.lock().len(), MAX_SESSIONS);
    }
}
