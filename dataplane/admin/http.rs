//! HTTP of the metrics listener: `/metrics`, the status page and its `/status.json`. All of it is read-only.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::listen::Connections;
use super::metrics::{self, Format};
use super::page;
use super::requests::Handle;
use super::service::look;
use super::status::Status;

/// Path of the metrics.
const METRICS: &str = "/metrics";
/// Path of the status.
const STATUS: &str = "/status.json";
/// Content type of plain text.
const TEXT: &str = "text/plain; charset=utf-8";

/// Headers of all answers. The browser loads scripts and styles from this listener only, and none inside the
/// page.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

/// Serves accepted connections until no more can come. A connection ends if it has no complete request header within
/// `header_max` after its start or its previous answer.
pub async fn run(
    mut accepted: Connections<tokio::net::TcpStream>,
    handle: Handle,
    header_max: Duration,
) {
    while let Some(Ok(client)) = accepted.recv().await {
        let (handle, slot) = (handle.clone(), client.handle());
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                // The connection keeps its slot until the answer is ready, but not while a slow client reads it.
                let call = slot.call();
                let response = answer(request, &handle);
                async move {
                    let answer = response.await;
                    drop(call);
                    Ok::<_, Infallible>(answer)
                }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(header_max)
                .serve_connection(TokioIo::new(client), answer);
            // Fails only if a client disconnects or takes too long.
            let _ = served.await;
        });
    }
}

/// Answers a request: a file of the page, the metrics, the status, or an error.
async fn answer(request: Request<Incoming>, handle: &Handle) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let resource = page::resource(path);
    if resource.is_none() && ![METRICS, STATUS].contains(&path) {
        let text = "the pages are /, /status.json and /metrics\n";
        return respond(StatusCode::NOT_FOUND, TEXT, text);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let text = "this listener is read-only: GET and HEAD are allowed\n";
        let mut refused = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    if let Some((kind, bytes)) = resource {
        return respond(StatusCode::OK, kind, bytes);
    }
    let Ok(snapshot) = look(handle).await else {
        return respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the node is ending\n");
    };
    if path == METRICS {
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = Format::accepted(accept.unwrap_or_default());
        return respond(StatusCode::OK, format.content_type(), metrics::render(&snapshot, format));
    }
    match serde_json::to_vec(&Status::of(snapshot)) {
        Ok(json) => respond(StatusCode::OK, "application/json", json),
        Err(error) => {
            log::error!("{STATUS}: {error}");
            respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "no status\n")
        }
    }
}

/// Returns a response of this content type, with the headers of all answers.
fn respond(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in HEADERS.into_iter().chain([(CONTENT_TYPE, kind)]) {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
