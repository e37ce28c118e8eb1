//! The files of the dashboard's page, which are part of the binary. A browser caches a file and
//! asks at each use if the file has changed.

use std::{
    io::{self, Write as _},
    sync::{Arc, OnceLock},
};

use axum::{
    Extension,
    body::Bytes,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use seawall_page::{DASHBOARD, File};
use sha2::{Digest as _, Sha256};

/// Name of the HTML file that is served at `/`.
const PAGE: &str = "index.html";

/// The files of the page. The compressed form of a file is computed on first use.
pub(super) struct Assets([Asset; DASHBOARD.len()]);

struct Asset {
    file: File,
    compressed: OnceLock<Option<Compressed>>,
}

/// A compressed file. `tag` is the common part of the two entity tags of the file: one for its
/// plain form, and one for its compressed form.
#[derive(Clone)]
struct Compressed {
    bytes: Bytes,
    tag: String,
}

impl Default for Assets {
    fn default() -> Self {
        Self(DASHBOARD.map(|file| Asset {
            file,
            compressed: OnceLock::new(),
        }))
    }
}

impl Asset {
    /// The compressed file. `None` if it could not be compressed.
    fn compressed(&self) -> Option<&Compressed> {
        let compress = || {
            let bytes = gzip(self.file.content.as_bytes()).ok()?.into();
            let digest = Sha256::digest(self.file.content.as_bytes());
            let hexadecimal = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
            let tag = hexadecimal.collect();
            Some(Compressed { bytes, tag })
        };
        self.compressed.get_or_init(compress).as_ref()
    }

    fn content_type(&self) -> &'static str {
        match self.file.name.rsplit_once('.').map(|(_, kind)| kind) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }

    fn reply(&self, headers: &HeaderMap) -> Response {
        let compressed = self.compressed();
        let is_compressed = compressed.is_some() && accepts_gzip(headers);
        let (body, form) = match compressed.filter(|_| is_compressed) {
            Some(compressed) => (compressed.bytes.clone(), "gzip"),
            None => (Bytes::from_static(self.file.content.as_bytes()), "plain"),
        };
        let tag = compressed.map_or("", |compressed| &compressed.tag);
        // The plain and the compressed form have different tags, because their bytes differ.
        let tag = format!("\"{tag}-{form}\"");
        let has_it = headers.get_all(header::IF_NONE_MATCH).iter();
        let mut has_it = has_it.filter_map(|tags| tags.to_str().ok());
        let is_known = has_it.any(|tags| tags.split(',').any(|known| is_same(known, &tag)));
        let mut response = match is_known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => body.into_response(),
        };
        let set = response.headers_mut();
        set.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.content_type()),
        );
        set.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        set.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if let Ok(tag) = tag.parse() {
            set.insert(header::ETAG, tag);
        }
        if is_compressed && !is_known {
            set.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// True if `known`, the entity tag of the caller's copy, equals `tag` or is `*`. A cache may have
/// marked `known` as weak.
fn is_same(known: &str, tag: &str) -> bool {
    let known = known.trim();
    known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
}

/// True if the caller accepts `gzip`. A quality of 0 means that the caller does not accept `gzip`.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = quality.trim().strip_prefix("q=").unwrap_or("1");
        name.trim() == "gzip" && quality.parse().is_ok_and(|quality: f32| quality > 0.0)
    })
}

fn gzip(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}

pub(super) async fn page(
    Extension(assets): Extension<Arc<Assets>>,
    headers: HeaderMap,
) -> Response {
    reply(&assets, PAGE, &headers)
}

pub(super) async fn asset(
    Extension(assets): Extension<Arc<Assets>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    reply(&assets, &name, &headers)
}

fn reply(assets: &Assets, name: &str, headers: &HeaderMap) -> Response {
    let mut all = assets.0.iter();
    match all.find(|asset| asset.file.name == name) {
        Some(asset) => asset.reply(headers),
        None => (StatusCode::NOT_FOUND, "no such file\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use flate2::read::GzDecoder;

    use super::*;

    /// Maximum size of the whole dashboard after compression.
    const MAX_BYTES: usize = 150 << 10;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn all_compressed_files_together_are_within_the_maximum_size() {
        let sizes = DASHBOARD.iter().map(|file| file.content.as_bytes());
        let total: usize = sizes.map(|content| gzip(content).unwrap().len()).sum();
        assert!(total <= MAX_BYTES, "{total}");
    }

    #[tokio::test]
    async fn unchanged_dashboard_files_are_not_sent_and_gzip_is_sent_only_if_accepted() {
        let assets = Assets::default();
        let plain = reply(&assets, PAGE, &HeaderMap::new());
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let tag = plain.headers()[header::ETAG].to_str().unwrap().to_owned();
        let expected = to_bytes(plain.into_body(), MAX_BYTES).await.unwrap();
        let packed = headers(header::ACCEPT_ENCODING, "br, gzip;q=0.8");
        let response = reply(&assets, PAGE, &packed);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        assert_ne!(response.headers()[header::ETAG].to_str().unwrap(), tag);
        let body = to_bytes(response.into_body(), MAX_BYTES).await.unwrap();
        let unpacked = io::read_to_string(GzDecoder::new(&*body)).unwrap();
        assert_eq!(unpacked.as_bytes(), expected);
        let known = headers(header::IF_NONE_MATCH, &format!("\"x\", W/{tag}"));
        let unchanged = reply(&assets, PAGE, &known);
        assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
        let refused = headers(header::ACCEPT_ENCODING, "gzip;q=0, br");
        let response = reply(&assets, PAGE, &refused);
        assert!(!response.headers().contains_key(header::CONTENT_ENCODING));
        let missing = reply(&assets, "../Cargo.toml", &HeaderMap::new());
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    }
}
