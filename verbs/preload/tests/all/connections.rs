//! Tests of the connection manager's interface, by a program written to the manual pages and by
//! Debian's unmodified programs, each as two processes joined back to back.

use crate::alone::alone;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
const SERVER_IP: &str = "10.77.0.2";
const CLIENT_IP: &str = "10.77.0.1";

/// One of Debian's programs.
fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    assert!(path.exists(), "{name} is missing: apt-get install rdmacm-utils");
    path
}

/// The test program, compiled on first use.
fn own() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/connections.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("connections");
        let output = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .args(["-lrdmacm", "-libverbs"])
            .output()
            .expect("cc is missing: apt-get install gcc");
        let diagnostics = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "apt-get install librdmacm-dev; cc says:\n{diagnostics}");
        program
    });
    compiled.clone()
}

fn fresh_socket() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("longhaul-connections-{}-{count}.sock", std::process::id()))
}

/// One side of a pair; killed when dropped, so that a failed test leaves no process behind.
struct Side {
    child: Child,
    what: String,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Side {
    fn start(program: &Path, arguments: &str, (role, ip): (&str, &str), socket: &Path) -> Side {
        let library = std::env::current_exe().unwrap().with_file_name("liblonghaul_preload.so");
        assert!(
            library.exists(),
            "{} does not exist: cargo builds it with this test",
            library.display()
        );
        let what = format!("{} {arguments}", program.display());
        let child = Command::new(program)
            .args(arguments.split_whitespace())
            .env("LD_PRELOAD", library)
            .env("LONGHAUL_MEMIF_SOCKET", socket)
            .env("LONGHAUL_MEMIF_ROLE", role)
            .env("LONGHAUL_IP", ip)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Side { child: child.unwrap_or_else(|error| panic!("{what}: {error}")), what }
    }

    /// Waits for a successful exit and returns the output.
    fn finish(mut self) -> String {
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break Some(status),
                None if begun.elapsed() > LIMIT => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let text = self.printed();
        match status {
            Some(status) if status.success() => text,
            Some(status) => panic!("{}: {status}\n{text}", self.what),
            None => panic!("{}: not done after {LIMIT:?}\n{text}", self.what),
        }
    }

    fn printed(&mut self) -> String {
        let _ = self.child.kill();
        let pipes =
            (self.child.stdout.take().map(read_all), self.child.stderr.take().map(read_all));
        pipes.0.unwrap_or_default() + &pipes.1.unwrap_or_default()
    }
}

fn read_all(mut pipe: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Starts the serving side, and waits until it has attached its port.
fn serve(program: &Path, arguments: &str, socket: &Path) -> Side {
    let side = Side::start(program, arguments, ("master", SERVER_IP), socket);
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < LIMIT, "{} does not attach its port", side.what);
        std::thread::sleep(Duration::from_millis(5));
    }
    side
}

fn ask(program: &Path, arguments: &str, socket: &Path) -> String {
    Side::start(program, arguments, ("slave", CLIENT_IP), socket).finish()
}

/// Runs one of Debian's programs against itself, until both sides succeed.
fn pair(name: &str, serving: &str, asking: &str) -> (String, String) {
    let _alone = alone();
    let (program, socket) = (program(name), fresh_socket());
    let server = serve(&program, serving, &socket);
    let asked = ask(&program, asking, &socket);
    (server.finish(), asked)
}

mod interface {
    use super::*;

    fn scenario(name: &str) {
        let _alone = alone();
        let socket = fresh_socket();
        let server = serve(&own(), &format!("serve {name}"), &socket);
        let asked = ask(&own(), &format!("ask {name}"), &socket);
        let served = server.finish();
        assert_eq!((&*served, &*asked), ("0 failures\n", "0 failures\n"));
    }

    #[test]
    fn refuses_with_reasons_and_private_data() {
        scenario("refusal");
    }

    #[test]
    fn makes_endpoints_that_wait_for_their_own_events_over_either_transport() {
        scenario("reliable");
        scenario("unreliable");
    }

    #[test]
    fn names_datagram_services() {
        scenario("datagrams");
    }

    #[test]
    fn moves_identifiers_between_channels() {
        scenario("channels");
    }

    #[test]
    fn holds_to_ports_states_and_acknowledgements() {
        let _alone = alone();
        let printed = Side::start(&own(), "alone", ("master", SERVER_IP), &fresh_socket()).finish();
        assert!(printed.starts_with("0 failures\n"), "{printed}");
    }
}

mod programs {
    use super::*;

    #[test]
    fn exchange_messages_over_many_connections() {
        pair("ucmatose", "-c 5", "-c 5 -s 10.77.0.2");
        pair("ucmatose", "-c 3 -m -t 8", "-c 3 -m -t 8 -s 10.77.0.2");
        pair("ucmatose", "-P ib", "-P ib -s 10.77.0.2");
    }

    #[test]
    fn refuse_infiniband_addresses() {
        let _alone = alone();
        let (program, socket) = (program("ucmatose"), fresh_socket());
        let arguments = "-f gid -s ::ffff:10.77.0.2";
        let mut side = Side::start(&program, arguments, ("slave", CLIENT_IP), &socket);
        let status = side.child.wait().unwrap();
        let text = side.printed();
        assert!(!status.success() && text.contains("ai_family not supported"), "{status}\n{text}");
    }

    #[test]
    fn send_datagrams_to_a_service() {
        pair("udaddy", "-c 3", "-c 3 -s 10.77.0.2");
        pair("udaddy", "-p 0x0002", "-p 0x0002 -s 10.77.0.2");
    }

    #[test]
    fn receive_what_is_sent_to_a_group() {
        for (receives, sends) in [("", ""), ("-c 3", "-c 3 -o"), ("-p 0x2", "-p 0x2")] {
            let receiving = format!("-m 224.7.7.7 -b {SERVER_IP} -C 5 {receives}");
            let sending = format!("-m 224.7.7.7 -b {CLIENT_IP} -C 5 -s {sends}");
            let _alone = alone();
            let (program, socket) = (program("mckey"), fresh_socket());
            let mut receiver = serve(&program, &receiving, &socket);
            // Packets sent before it has joined are lost, and it does not report when it has.
            while receiver.child.try_wait().unwrap().is_none() {
                let sent = ask(&program, &sending, &socket);
                assert!(sent.contains("joined dgid: ::ffff:224.7.7.7"), "{sent}");
            }
            let received = receiver.finish();
            assert!(received.contains("data transfers complete"), "{received}");
        }
    }

    #[test]
    fn serve_and_ask_through_endpoints() {
        let _alone = alone();
        let socket = fresh_socket();
        let server = serve(&program("rdma_xserver"), "-c r", &socket);
        ask(&program("rdma_xclient"), "-c r -s 10.77.0.2", &socket);
        server.finish();
    }

    #[test]
    fn stream_through_sockets_of_the_real_library() {
        let (_, sent) =
            pair("rstream", "-S 65536 -I 50 -C 10", "-S 65536 -I 50 -C 10 -s 10.77.0.2");
        assert!(sent.contains("64k"), "{sent}");
    }

    #[test]
    fn copy_a_file_through_sockets_of_the_real_library() {
        let _alone = alone();
        let (program, socket) = (program("rcopy"), fresh_socket());
        let (from, to) = (socket.with_extension("from"), socket.with_extension("to"));
        let contents: Vec<u8> =
            (0..3_000_017_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&from, &contents).unwrap();
        let _server = serve(&program, "", &socket);
        ask(&program, &format!("{} {SERVER_IP}:{}", from.display(), to.display()), &socket);
        let copied = std::fs::read(&to).unwrap();
        let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
        assert!(copied == contents, "{} of {} bytes, or others", copied.len(), contents.len());
    }

    #[test]
    fn set_up_and_end_a_thousand_connections() {
        let _alone = alone();
        let (program, socket) = (program("cmtime"), fresh_socket());
        let _server = serve(&program, "", &socket);
        let text = ask(&program, "-c 1000 -s 10.77.0.2", &socket);
        assert!(!text.contains("error") && !text.contains("fail"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("disconnect")), "{text}");
    }
}
