//! The status page of running nodes: its files, `/status.json`, bad requests, and a browser (Chromium) that shows the
//! numbers of `wedjat state --json`. A node serves the page on its metrics address. The page's script polls
//! `/status.json`, which has the node's state.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
#[path = "../testbed/src/free_address.rs"]
mod free_address;
mod process;
mod running;
mod timeouts;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use wedjat::reason::DropReason;
use wedjat::wire::task::Header;

use frames::*;
use free_address::free_address;
use process::ChildProcess;
use running::*;
use timeouts::*;

/// Counters and other numbers that change on a node even without traffic.
const RESTLESS: [&str; 5] = ["empty_polls", "pauses", "stalls", "stalled_ticks", "stall_ticks"];
/// Number of packets of an unknown EtherType in the leaf's traffic, which the leaf drops.
const STRAYS: usize = 3;
/// Content security policy, a header of each answer: the page loads and runs only files of the node.
const CSP: &str = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                   img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Sends the bytes over a new connection, and returns the whole answer.
fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut answer, _) = (Vec::new(), stream.write_all(request)); // the listener may close early
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends an HTTP request. Returns the head and the body of the answer.
fn ask(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    let answer = exchange(address, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer}"));
    (head.to_owned(), body.to_owned())
}

/// Returns `/status.json` of a node.
fn status(address: SocketAddr) -> Value {
    let (head, body) = ask(address, "GET", "/status.json");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
    serde_json::from_str(&body).unwrap()
}

/// A running leaf with a metrics listener.
struct LeafFixture {
    /// Folder of the leaf's files.
    home: Home,
    /// Address of the metrics and of the status page.
    metrics: SocketAddr,
    /// Kills the leaf at the end.
    _leaf: ChildProcess,
}

impl LeafFixture {
    /// Starts a leaf that receives 100 tasks, 3 replies and the strays: endlessly, or once. `change` edits the text of
    /// its configuration.
    fn start(endless: bool, change: impl Fn(String) -> String) -> Self {
        let tasks = (0..100).map(|seq| task(Header::new_task(POOL, seq)));
        let replies =
            [(10, 3), (11, 2), (12, 0)].map(|(from, load)| reply(from, load, LEAF_MACS[0]));
        let strays = vec![vec![0xFF; 60]; STRAYS];
        let home = Home::given(&tasks.chain(replies).chain(strays).collect::<Vec<_>>());
        let metrics = free_address().unwrap();
        let file = home.path("leaf.toml");
        let mut text = fs::read_to_string(&file).unwrap();
        if !endless {
            text = text.replace(",infinite_rx=1", "");
        }
        fs::write(file, change(text) + &format!("[control]\nmetrics = '{metrics}'\n")).unwrap();
        let leaf = home.start(home.leaf(&[]));
        Self { home, metrics, _leaf: leaf }
    }

    /// Starts a leaf without changes to its configuration, and waits until its traffic is over.
    fn settled() -> Self {
        let served = Self::start(false, |text| text);
        wait_until("the strays, which come last, are dropped", || {
            served.state()["cores"][0]["drops"]["ether_type"] == STRAYS
        });
        served
    }

    /// Returns the output of `wedjat state --json`.
    fn state(&self) -> Value {
        let output =
            Command::new(WEDJAT).arg("state").arg(self.home.state()).arg("--json").output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    }
}

/// Returns the state of a node (and of its agent) without numbers that change even without traffic, and without seeds.
/// Two such states can be compared.
fn at_rest(mut state: Value) -> Value {
    for core in state["cores"].as_array_mut().unwrap() {
        core.as_object_mut().unwrap().retain(|key, _| !RESTLESS.contains(&key.as_str()));
        core["counters"]
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !RESTLESS.contains(&key.as_str()));
    }
    state.as_object_mut().unwrap().remove("seed");
    if state["agent"].is_object() {
        state["agent"] = at_rest(state["agent"].take());
    }
    state
}

// promise: control.4
#[test]
fn status_equals_the_state_file() {
    let served = LeafFixture::settled();
    let (before, status, after) = (served.state(), status(served.metrics), served.state());
    assert!(before["seed"].is_u64() && status["state"]["seed"].is_null(), "{status}");
    let shown = at_rest(status["state"].clone());
    assert_eq!(shown, at_rest(after.clone()));
    for name in ["empty_polls", "stalls"] {
        let count = |state: &Value| state["cores"][0]["counters"][name].as_u64().unwrap();
        let range = count(&before)..=count(&after);
        let now = count(&status["state"]);
        // No upper bound: the state file may hold an older copy of the counter than the status.
        assert!(now >= *range.start(), "{name}: {now} is not in {range:?}");
    }
    let members = status["members"][0].as_array().unwrap();
    let ages: Vec<_> = members.iter().map(|member| member["report_age"].is_number()).collect();
    assert_eq!(ages, [true, true, true, false], "worker 13 reported nothing: {status}");
    assert!(members.iter().all(|member| member["away"] == false && member["drained"] == false));
    assert_eq!((&status["acknowledged"], &status["controller"]), (&1.into(), &Value::Null));
    let uptime = status["time"].as_f64().unwrap() - status["state"]["started"].as_f64().unwrap();
    assert!((0.0..TIMEOUT.as_secs_f64()).contains(&uptime), "{uptime}");
    // A worker drained live shows as drained.
    let mut drain = Command::new(WEDJAT);
    drain.args(["ctl", "drain", "11"]).env("WEDJAT_STATE", served.home.state());
    assert!(drain.output().unwrap().status.success());
    let status = self::status(served.metrics);
    assert_eq!(
        (&status["members"][0][1]["drained"], &status["acknowledged"]),
        (&true.into(), &2.into())
    );
}

// promise: control.4
#[test]
fn status_includes_a_colocated_agent() {
    let folder = tempfile::tempdir().unwrap();
    let agent = format!(
        "[agent]\nname = '{}'\n[[agent.pool]]\nid = {POOL}\npolicy = 'jsq'\nworkers = '20-21'\n",
        folder.path().join("host").display()
    );
    let served = LeafFixture::start(false, |text| text + &agent);
    wait_until("the state file has what the status has", || {
        at_rest(served.state()) == at_rest(status(served.metrics)["state"].clone())
    });
    let state = status(served.metrics)["state"].take();
    assert!(state["agent"]["role"] == "agent" && state["agent"]["seed"].is_null(), "{state}");
    let Some(page) = Page::open(served.metrics, "") else { return };
    assert_eq!((page.connection(), page.console.as_str()), ("live", ""));
    assert_eq!(page.html.matches("<dt>role</dt>").count(), 2);
}

// promise: control.4
#[test]
fn pages_are_read_only() {
    let served = LeafFixture::settled();
    for (path, kind) in [
        ("/", "text/html"),
        ("/?from=bookmark", "text/html"),
        ("/style.css", "text/css"),
        ("/status.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
        ("/status.json", "application/json"),
        ("/metrics", "text/plain"),
    ] {
        let (head, body) = ask(served.metrics, "GET", path);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{path}: {head}");
        assert!(
            head.contains(&format!("content-type: {kind}")) && !body.is_empty(),
            "{path}: {head}"
        );
        let (only, nothing) = ask(served.metrics, "HEAD", path);
        assert!(only.starts_with("HTTP/1.1 200 OK") && nothing.is_empty(), "{path}: {only}");
        for head in [head, only] {
            for header in [CSP, "x-content-type-options: nosniff", "referrer-policy: no-referrer"] {
                assert!(head.contains(header), "{path}: {header} is not in {head}");
            }
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let (head, _) = ask(served.metrics, method, path);
            assert!(
                head.starts_with("HTTP/1.1 405 ") && head.contains("allow: GET, HEAD"),
                "{head}"
            );
            assert!(head.contains(CSP), "{head}");
        }
    }
    for path in ["/../etc/passwd", "//", "/index.html", "/status.json/", "/%2e%2e/etc/passwd", "*"]
    {
        let (head, body) = ask(served.metrics, "GET", path);
        assert!(head.starts_with("HTTP/1.1 404 ") && head.contains(CSP), "{path}: {head}");
        assert!(!body.contains("root:"), "{path}: {body}");
    }
    // The files load nothing from other hosts, and have no inline styles.
    for path in ["/", "/style.css", "/status.js"] {
        let (_, body) = ask(served.metrics, "GET", path);
        let body = body.replace("http://www.w3.org/2000/svg", ""); // a name, not a link
        assert!(!body.contains("http://") && !body.contains("https://"), "{path}");
        assert!(!body.contains("innerHTML") && !body.contains("style=\""), "{path}");
    }
}

// promise: control.4
#[test]
fn bad_requests_do_no_harm() {
    let served = LeafFixture::start(true, |text| text);
    let mut random = vec![0; 20_000];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    let huge = format!("GET / HTTP/1.1\r\nHost: node\r\nX: {}\r\n\r\n", "x".repeat(4 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10_000));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    for request in [&random, huge.as_bytes(), many.as_bytes(), long.as_bytes(), b"GET\r\n\r\n"] {
        let answer = exchange(served.metrics, request);
        assert!(!answer.starts_with("HTTP/1.1 200"), "{}", &answer[..answer.len().min(200)]);
    }
    // More connections than the node has slots: silent clients, half a request, and a client that reads no answer.
    let request = "GET /status.json HTTP/1.1\r\nHost: node\r\n\r\n";
    let strangers: Vec<_> = ["", "GET /sta", request]
        .into_iter()
        .cycle()
        .take(300)
        .map(|text| {
            let mut stream = TcpStream::connect(served.metrics).unwrap();
            let _ = stream.write_all(text.as_bytes());
            stream
        })
        .collect();
    let received = |status: &Value| status["state"]["cores"][0]["counters"]["rx_packets"].as_u64();
    let before = received(&status(served.metrics));
    wait_until("the leaf goes on", || received(&status(served.metrics)) > before);
    drop(strangers);
}

/// Starts a node of this role without traffic, with a metrics listener at the returned address.
fn started(role: &str, text: String, folder: &Path) -> (ChildProcess, SocketAddr) {
    let (file, metrics) = (folder.join(format!("{role}.toml")), free_address().unwrap());
    fs::write(&file, text + &format!("[control]\nmetrics = '{metrics}'\n")).unwrap();
    let mut command = Command::new(WEDJAT);
    command.args([role, "--duration", LIFETIME, "--config"]).arg(&file).env("RUST_LOG", "error");
    let mut node = ChildProcess::start(&mut command);
    wait_until("the node listens", || {
        assert!(!node.has_ended(), "{role}");
        TcpStream::connect(metrics).is_ok()
    });
    (node, metrics)
}

/// Returns the first CPU that this process may use.
fn first_cpu() -> usize {
    core_affinity::get_core_ids().unwrap()[0].id
}

// promise: control.4
#[test]
fn agents_and_spines_have_the_page() {
    let files = tempfile::tempdir().unwrap();
    let (cpu, host) = (first_cpu(), files.path().join("host"));
    let agent = format!(
        "[agent]\nname = '{}'\ncore = {cpu}\n[[port]]\ndevice = 'net_null0,size=64'\nip = '10.0.2.11/24'\n\
         [[pool]]\nid = 7\npolicy = 'jsq'\nworkers = '0-3'\n",
        host.display()
    );
    let spine = format!(
        "[spine]\nid = 100\ncores = [{cpu}]\n[[port]]\ndevice = 'net_null0,size=64'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'net_null1,size=64'\nside = 'workers'\nip = '10.0.3.1/24'\n\
         [[pool]]\nid = 1\npolicy = 'horus-spine-weighted'\nservice = '10.0.1.100'\n\
         [[leaf]]\nid = 1\nip = '10.0.3.11'\npool = 1\nworkers = 32\n"
    );
    for (role, text, members) in [("agent", agent, 4), ("spine", spine, 1)] {
        let (_node, metrics) = started(role, text, files.path());
        let status = status(metrics);
        assert_eq!(status["state"]["role"], role, "{status}");
        let listed = status["members"][0].as_array().unwrap().len();
        assert_eq!(listed, members, "{status}");
        let Some(page) = Page::open(metrics, "") else { continue };
        assert_eq!(page.rows("pools")[0]["workers"], members.to_string());
        assert_eq!(page.heat(), members);
    }
}

// promise: control.4
#[test]
fn connection_to_the_controller_is_shown() {
    let files = tempfile::tempdir().unwrap();
    let fabric = files.path().join("fabric");
    let address = format!("unix:{}.ctl", fabric.display());
    let leaf = format!(
        "[leaf]\nid = 1\ncores = [{}]\n\
         [[port]]\ndevice = 'net_null0,size=64'\nside = 'both'\nip = '10.0.1.1/16'\n\
         [controller]\naddresses = ['{address}']\n",
        first_cpu()
    );
    let (_leaf, metrics) = started("leaf", leaf, files.path());
    let link = |connected: bool| serde_json::json!({ "address": address, "connected": connected });
    let waits_for = |connected| {
        wait_until(&format!("connected is {connected}"), || {
            status(metrics)["controller"] == link(connected)
        });
        let sample = format!("\nwedjat_controller_connected {}\n", u8::from(connected));
        wait_until(&sample, || ask(metrics, "GET", "/metrics").1.contains(&sample));
    };
    waits_for(false);
    let file = files.path().join("controller.toml");
    fs::write(&file, format!("[controller]\nid = 1\nstore = '{}'\n", fabric.display())).unwrap();
    let mut command = Command::new(WEDJAT);
    command.args(["controller", "--config"]).arg(file).env("RUST_LOG", "error");
    let controller = ChildProcess::start(&mut command);
    let mut add = Command::new(WEDJAT);
    add.args(["ctl", "add-leaf", "1", "10.0.1.1"]).env("WEDJAT_CONTROLLER", &fabric);
    wait_until("the controller knows the leaf", || add.output().unwrap().status.success());
    waits_for(true);
    drop(controller);
    waits_for(false);
}

/// A page after its scripts ran.
struct Page {
    /// The document, with the elements that the scripts made.
    html: String,
    /// Messages of the browser's console.
    console: String,
}

impl Page {
    /// Loads the page in a browser and lets it run for five polls. `place` is the part of the URL behind the slash,
    /// such as `#workers`. Returns `None` without a browser.
    fn open(address: SocketAddr, place: &str) -> Option<Self> {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--log-level=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            // Virtual time waits for the page's requests, so that a slow machine changes nothing.
            .args(["--virtual-time-budget=4500", "--dump-dom"])
            .arg(format!("http://{address}/{place}"));
        let (out, err) = (profile.path().join("stdout"), profile.path().join("stderr"));
        command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
        let Ok(browser) = command.spawn() else {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: there is no browser for the status page (Debian: chromium)"
            );
            return None;
        };
        let mut browser = ChildProcess::of(browser);
        wait_until("the browser has ended", || browser.has_ended());
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let (html, stderr) = (text(out), text(err));
        assert!(html.contains("</html>"), "{html}\n{stderr}");
        let console =
            stderr.lines().filter(|line| line.contains("CONSOLE")).map(|line| format!("{line}\n"));
        Some(Self { html, console: console.collect() })
    }

    /// Returns the document from the start of the part with this name to the end of the document.
    fn part(&self, name: &str) -> &str {
        // The first match is the part of the first node. The page's template, which follows, has the part, too.
        let (_, part) = self.html.split_once(&format!("data-part=\"{name}\"")).unwrap();
        part
    }

    /// Returns the rows of a part's table: the texts of their cells by column.
    fn rows(&self, name: &str) -> Vec<BTreeMap<String, String>> {
        let (_, table) = self.part(name).split_once("<tbody>").unwrap();
        let (body, _) = table.split_once("</tbody>").unwrap();
        let cell = |text: &str| {
            let (column, rest) = text.split_once('"')?;
            let (_, rest) = rest.split_once('>')?;
            let (content, _) = rest.split_once("</t")?;
            let texts = content.split('<').map(|part| part.rsplit('>').next().unwrap_or_default());
            Some((column.to_owned(), texts.collect::<String>().replace(',', "")))
        };
        let row = |row: &str| row.split("data-column=\"").skip(1).filter_map(cell).collect();
        body.split("<tr").skip(1).map(row).collect()
    }

    /// Returns the number of cells in the heat map.
    fn heat(&self) -> usize {
        let (heat, _) = self.part("heat").split_once("data-part=\"pointed\"").unwrap();
        heat.matches("<span class=\"cell ").count()
    }

    /// Returns the page's text about its connection to the node.
    fn connection(&self) -> &str {
        let (_, text) = self.html.split_once("id=\"connection\"").unwrap();
        let (_, text) = text.split_once('>').unwrap();
        text.split('<').next().unwrap()
    }
}

// promise: control.4
#[test]
fn browser_shows_the_numbers_of_the_state() {
    let served = LeafFixture::settled();
    let Some(page) = Page::open(served.metrics, "#workers") else { return };
    assert_eq!((page.connection(), page.console.as_str()), ("live", ""));
    let state = served.state();
    let (core, pool) = (&state["cores"][0], &state["pools"][0]);
    let sum = |key: &str| -> f64 {
        pool["members"].as_array().unwrap().iter().map(|member| member[key].as_f64().unwrap()).sum()
    };
    let [shown] = &page.rows("cores")[..] else { panic!() };
    for (column, count) in [
        ("received", &core["counters"]["rx_packets"]),
        ("held", &core["counters"]["held"]),
        ("waiting", &core["counters"]["queued"]),
    ] {
        assert_eq!(shown[column], count.to_string(), "{column}");
    }
    assert_eq!((&*shown["dropped"], &*shown["rx"]), (&*STRAYS.to_string(), "0"));
    let [shown] = &page.rows("pools")[..] else { panic!() };
    assert_eq!((&*shown["policy"], &*shown["workers"], &*shown["away"]), ("random", "4", "0"));
    for key in ["load", "outstanding"] {
        assert_eq!(shown[key], sum(key).to_string(), "{key}");
    }
    // The workers have reported 3, 2 and 0 tasks, and 3 of 100 tasks are answered.
    assert!(sum("load") == 5.0 && sum("outstanding") > 90.0, "{pool}");
    let workers = page.rows("workers");
    assert_eq!((workers.len(), page.heat()), (4, 4));
    for (shown, member) in workers.iter().zip(pool["members"].as_array().unwrap()) {
        for key in ["worker", "load", "outstanding", "reports", "lost"] {
            let number = member[key].as_f64().unwrap().to_string();
            assert_eq!(shown[key], number, "{key}: {shown:?}");
        }
        let drift = member["drift"][0].as_f64().unwrap().to_string();
        assert_eq!((&shown["drift"], &*shown["server"]), (&drift, "10.0.2.11"));
        assert_eq!(shown["state"], member["presence"].as_str().unwrap());
    }
    let drops = page.rows("drops");
    assert_eq!(drops.len(), core["drops"].as_object().unwrap().len());
    for drop in &drops {
        assert_eq!(drop["total"], core["drops"][&drop["reason"]].to_string());
        let help =
            DropReason::ALL.iter().find(|reason| reason.name() == drop["reason"]).unwrap().help();
        assert_eq!(drop["help"], help.replace(',', ""));
        let target = format!("reason-{}", drop["reason"]);
        assert!(page.part("drops").contains(&format!("href=\"#{target}\"")), "{target}");
        assert_eq!(page.html.matches(&format!("id=\"{target}\"")).count(), 1, "{target}");
    }
    let facts = page.part("facts").split("</dl>").next().unwrap();
    for (name, text) in
        [("role", "leaf"), ("id", "1"), ("membership version", "1"), ("controller", "none")]
    {
        assert!(facts.contains(&format!("<dt>{name}</dt><dd>{text}</dd>")), "{name}: {facts}");
    }
}

// promise: control.4
#[test]
fn browser_shows_live_rates() {
    let served = LeafFixture::start(true, |text| text);
    // Two polls may see the same numbers if the leaf does not run in between.
    wait_until("two polls differ", || {
        let Some(page) = Page::open(served.metrics, "") else { return true };
        let [core] = &page.rows("cores")[..] else { panic!() };
        let rate = |key: &str| core[key].parse::<f64>().unwrap_or(0.0);
        ["rx", "tx", "tasks", "drops"].iter().all(|key| rate(key) > 0.0)
            && rate("rx") > rate("tx")
            && core["burst"].parse::<f64>().unwrap() >= 1.0
    });
}

// promise: control.4
#[test]
fn page_draws_1024_workers() {
    let served = LeafFixture::start(false, |text| text.replace("'10-13'", "'0-1023'"));
    let Some(page) = Page::open(served.metrics, "#workers") else { return };
    assert_eq!((page.connection(), page.console.as_str()), ("live", ""));
    assert_eq!((page.heat(), page.rows("workers").len()), (1024, 1024));
    assert_eq!(page.rows("workers")[1023]["worker"], "1023");
}

/// Starts an HTTP proxy that passes requests to the node until this process ends. Returns its address. `change` gets
/// the path and the answer's body, and returns another body, or `None` to close the connection instead.
fn proxy(
    node: SocketAddr,
    change: impl Fn(&str, String) -> Option<String> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let change = std::sync::Arc::new(change);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, change) = (stream.unwrap(), std::sync::Arc::clone(&change));
            std::thread::spawn(move || {
                let mut lines =
                    BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { return };
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let path = first.split(' ').nth(1).unwrap();
                let (head, body) = ask(node, "GET", path);
                let Some(body) = change(path, body) else { return };
                let head = head.lines().filter(|line| !line.starts_with("content-length"));
                let head: String = head.map(|line| format!("{line}\r\n")).collect();
                let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
            });
        }
    });
    address
}

// promise: control.4
#[test]
fn lost_connection_is_shown() {
    let served = LeafFixture::settled();
    let polls = AtomicUsize::new(0);
    let address = proxy(served.metrics, move |path, body| {
        (path != "/status.json" || polls.fetch_add(1, Relaxed) < 2).then_some(body)
    });
    let Some(page) = Page::open(address, "") else { return };
    assert!(page.connection().starts_with("connection lost"), "{}", page.connection());
    assert!(page.html.contains("data-connection=\"lost\""));
    assert_eq!(page.rows("cores")[0]["dropped"], STRAYS.to_string(), "the last numbers stay");
}

// promise: control.4
#[test]
fn hostile_text_does_not_run() {
    let served = LeafFixture::settled();
    let markup = "<img src=x onerror=document.title=1><script>document.title=2</script>";
    let address = proxy(served.metrics, move |path, body| match path {
        "/status.json" => {
            let mut status: Value = serde_json::from_str(&body).unwrap();
            status["ports"][0]["device"] = markup.into();
            status["state"]["pools"][0]["policy"] = markup.into();
            status["state"]["cores"][0]["drops"] = serde_json::json!({ markup: 7 });
            Some(status.to_string())
        }
        _ => Some(body),
    });
    let Some(page) = Page::open(address, "") else { return };
    assert_eq!((page.connection(), page.console.as_str()), ("live", ""));
    assert!(page.html.contains("<title>leaf 1 - wedjat</title>"));
    let escaped = markup.replace('<', "&lt;").replace('>', "&gt;");
    for part in ["ports", "pools", "drops"] {
        assert!(page.part(part).contains(&escaped), "{part}");
    }
    // The content security policy blocks inline scripts, and the browser's console names it.
    let address = proxy(served.metrics, |path, body| match path {
        "/" => Some(body.replace("</header>", "</header><script>document.title = 'ran'</script>")),
        _ => Some(body),
    });
    let Some(page) = Page::open(address, "") else { return };
    assert!(page.console.contains("Content Security Policy"), "{}", page.console);
    assert!(!page.html.contains("<title>ran</title>"));
}
