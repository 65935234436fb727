//! Tests with Debian's unmodified verbs programs, as two processes joined back to back.
//!
//! The programs are in the packages perftest, rdmacm-utils and ibverbs-utils; if one is missing,
//! the tests fail and name it.

use crate::alone::alone;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
const SERVER_IP: &str = "10.77.0.2";

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let library = test.with_file_name("liblonghaul_preload.so");
    assert!(
        library.exists(),
        "{} does not exist: cargo builds it with this test",
        library.display()
    );
    library
}

fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    let package = match name {
        "rping" | "rdma_server" | "rdma_client" => "rdmacm-utils",
        name if name.starts_with("ibv_") => "ibverbs-utils",
        _ => "perftest",
    };
    assert!(path.exists(), "{name} is missing: apt-get install {package}");
    path
}

/// One side of a pair; killed when dropped, so that a failed test leaves no process behind.
struct Side(Child);

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Side {
    /// An empty `role` makes the process treat its peer as a lab.
    fn start(name: &str, arguments: &[&str], role: &str, ip: &str, socket: &Path) -> Side {
        Side::spawn(&mut Side::command(name, arguments, role, ip, socket))
    }

    fn command(name: &str, arguments: &[&str], role: &str, ip: &str, socket: &Path) -> Command {
        let mut command = Command::new(program(name));
        command
            .args(arguments)
            .env("LD_PRELOAD", library())
            .env("LONGHAUL_MEMIF_SOCKET", socket)
            .env("LONGHAUL_MEMIF_ROLE", role)
            .env("LONGHAUL_IP", ip)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn spawn(command: &mut Command) -> Side {
        Side(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits for a successful exit and returns the output.
    fn finish(self, what: &str) -> String {
        match self.end() {
            (Some(status), text) if status.success() => text,
            (Some(status), text) => panic!("{what}: {status}\n{text}"),
            (None, text) => panic!("{what}: not done after {LIMIT:?}\n{text}"),
        }
    }

    /// Waits for the exit and returns its status, `None` if the process had to be killed, and the
    /// output.
    fn end(mut self) -> (Option<ExitStatus>, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                break Some(status);
            }
            if begun.elapsed() > LIMIT {
                let _ = self.0.kill();
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut text = String::new();
        for pipe in [self.0.stdout.take().map(read_all), self.0.stderr.take().map(read_all)] {
            text.push_str(&pipe.unwrap_or_default());
        }
        (status, text)
    }
}

fn read_all(mut pipe: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn fresh() -> (PathBuf, u16) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let socket =
        std::env::temp_dir().join(format!("longhaul-preload-{}-{count}.sock", std::process::id()));
    (socket, 20_000 + ((std::process::id() * 31 + count * 7) % 10_000) as u16)
}

/// True if a socket listens on a TCP port. Asks the kernel, since a connection would disturb the
/// program.
fn tcp_listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().is_some_and(|local| local.ends_with(&wanted));
                local && fields.nth(1) == Some("0A")
            })
        })
    })
}

fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < LIMIT, "{what} is not ready after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a perftest program against itself and returns the client's output.
fn perftest(name: &str, options: &[&str]) -> String {
    let _alone = alone();
    let (socket, port) = fresh();
    let port_text = port.to_string();
    let by_rdma_cm = options.contains(&"-R");
    let mut arguments = vec!["-d", "longhaul0", "-p", &port_text, "-F"];
    arguments.extend_from_slice(options);
    if !by_rdma_cm && !options.contains(&"-c") {
        // An ACK timeout of a second, as by RDMA-CM: the machine may be busy.
        arguments.extend_from_slice(&["-u", "18"]);
    }
    let server = Side::start(name, &arguments, "master", SERVER_IP, &socket);
    if by_rdma_cm {
        // The socket appears when the server starts to listen.
        wait_until(name, || socket.exists());
    } else {
        wait_until(name, || tcp_listens(port));
    }
    arguments.push(if by_rdma_cm { SERVER_IP } else { "127.0.0.1" });
    let client = Side::start(name, &arguments, "slave", "10.77.0.1", &socket);
    let what = format!("{name} {}", arguments.join(" "));
    let text = client.finish(&what);
    server.finish(&format!("{what} (server)"));
    text
}

/// The numbers of the last result line: size, iterations, and measurements.
fn results(text: &str) -> Vec<f64> {
    let line = text.lines().rev().find(|line| {
        line.starts_with(' ') && line.trim_start().starts_with(|first: char| first.is_ascii_digit())
    });
    let line = line.unwrap_or_else(|| panic!("no results in\n{text}"));
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

mod devices {
    use super::*;

    fn run(name: &str, arguments: &[&str]) -> String {
        let _alone = alone();
        let (socket, _) = fresh();
        Side::start(name, arguments, "master", SERVER_IP, &socket).finish(name)
    }

    #[test]
    fn are_listed_with_their_guid() {
        let text = run("ibv_devices", &[]);
        assert!(text.contains("longhaul0") && text.contains("00000afffe4d0002"), "{text}");
    }

    #[test]
    fn describe_themselves_though_nobody_listens() {
        let text = run("ibv_devinfo", &["-v"]);
        for expected in [
            "hca_id:\tlonghaul0",
            "PORT_ACTIVE (4)",
            "active_mtu:\t\t4096 (5)",
            "link_layer:\t\tEthernet",
            "GID[  0]:\t\t::ffff:10.77.0.2, RoCE v2",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn are_absent_outside_of_longhaul() {
        let _alone = alone();
        let output = Command::new(program("ibv_devices"))
            .env("LD_PRELOAD", library())
            .env_remove("LONGHAUL_MEMIF_SOCKET")
            .output()
            .unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("longhaul0"));
    }
}

mod bandwidth {
    use super::*;

    #[test]
    fn of_write_read_and_send() {
        for name in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let results = results(&perftest(name, &["-s", "65536", "-n", "300"]));
            assert_eq!(results[..2], [65536.0, 300.0], "{name}");
            assert!(results[3] > 0.0, "{name}: {results:?}");
        }
    }

    #[test]
    fn of_connections_by_rdma_cm() {
        for name in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let results = results(&perftest(name, &["-R", "-s", "4096", "-n", "300"]));
            assert_eq!(results[..2], [4096.0, 300.0], "{name}");
        }
    }

    #[test]
    fn of_all_sizes() {
        let text = perftest("ib_write_bw", &["-a", "-n", "20"]);
        assert_eq!(results(&text)[0], f64::from(1 << 23), "{text}");
        let text = perftest("ib_read_bw", &["-a", "-n", "20", "-R"]);
        assert_eq!(results(&text)[0], f64::from(1 << 23), "{text}");
    }

    #[test]
    fn of_both_directions_and_several_queue_pairs() {
        perftest("ib_write_bw", &["-b", "-s", "65536", "-n", "200"]);
        perftest("ib_write_bw", &["-q", "4", "-s", "4096", "-n", "200"]);
        perftest("ib_write_bw", &["-q", "3", "-s", "4096", "-n", "200", "-R"]);
    }

    #[test]
    fn with_events_a_smaller_mtu_and_for_a_time() {
        perftest("ib_send_bw", &["-e", "-s", "4096", "-n", "300"]);
        perftest("ib_send_bw", &["-m", "1024", "-s", "65536", "-n", "100", "--report_gbits"]);
        perftest("ib_write_bw", &["-D", "1", "-s", "4096", "-R"]);
    }
}

mod latency {
    use super::*;

    #[test]
    fn of_write_read_and_send() {
        for name in ["ib_write_lat", "ib_read_lat", "ib_send_lat"] {
            for options in [&["-s", "2", "-n", "100"][..], &["-s", "64", "-n", "100", "-R"][..]] {
                let results = results(&perftest(name, options));
                assert_eq!(results[1], 100.0, "{name}");
            }
        }
    }
}

mod rping {
    use super::*;

    fn ping(server_options: &[&str]) {
        let _alone = alone();
        let (socket, port) = fresh();
        let port = port.to_string();
        let mut arguments = vec!["-s", "-p", &port];
        arguments.extend_from_slice(server_options);
        let server = Side::start("rping", &arguments, "master", SERVER_IP, &socket);
        wait_until("rping", || socket.exists());
        let client = ["-c", "-a", SERVER_IP, "-p", &port, "-v", "-V", "-C", "10", "-S", "1000"];
        let text = Side::start("rping", &client, "slave", "10.77.0.1", &socket).finish("rping -c");
        assert!(text.contains("rdma-ping-9"), "{text}");
        if server_options.contains(&"-P") {
            // Again against the same server, which keeps running.
            Side::start("rping", &client, "slave", "10.77.0.1", &socket).finish("rping -c, again");
        } else {
            server.finish("rping -s");
        }
    }

    #[test]
    fn validates_what_it_sent() {
        ping(&["-V", "-C", "10", "-S", "1000"]);
    }

    #[test]
    fn comes_back_to_a_persistent_server() {
        ping(&["-P", "-V", "-S", "1000"]);
    }
}

mod pingpong {
    use super::*;

    fn play(name: &str, options: &[&str]) {
        let _alone = alone();
        let (socket, port) = fresh();
        let port_text = port.to_string();
        let mut arguments = vec!["-d", "longhaul0", "-g", "1", "-p", &port_text, "-n", "200"];
        arguments.extend_from_slice(options);
        let server = Side::start(name, &arguments, "master", SERVER_IP, &socket);
        wait_until(name, || tcp_listens(port));
        arguments.push("127.0.0.1");
        let client = Side::start(name, &arguments, "slave", "10.77.0.1", &socket);
        let what = format!("{name} {}", options.join(" "));
        client.finish(&what);
        server.finish(&format!("{what} (server)"));
    }

    #[test]
    fn by_polling_and_by_events() {
        for events in [&["-c"][..], &["-c", "-e"][..]] {
            play("ibv_rc_pingpong", events);
            play("ibv_srq_pingpong", events);
        }
    }

    #[test]
    fn of_unreliable_transports() {
        for events in [&[][..], &["-e"][..]] {
            play("ibv_uc_pingpong", events);
            play("ibv_ud_pingpong", events);
        }
    }
}

mod datagrams_and_unreliable_connections {
    use super::*;

    #[test]
    fn by_perftest() {
        for (name, options) in [
            ("ib_send_bw", &["-c", "UD", "-s", "1024", "-n", "500"][..]),
            ("ib_send_lat", &["-c", "UD", "-s", "64", "-n", "100"]),
            ("ib_send_bw", &["-c", "UD", "-e", "-b", "-s", "512", "-n", "300"]),
            ("ib_send_bw", &["-c", "UC", "-s", "65536", "-n", "100"]),
            ("ib_send_lat", &["-c", "UC", "-s", "64", "-n", "100"]),
            ("ib_write_bw", &["-c", "UC", "-s", "65536", "-n", "200"]),
        ] {
            perftest(name, options);
        }
    }
}

mod atomics {
    use super::*;

    #[test]
    fn by_perftest() {
        for operation in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
            perftest("ib_atomic_bw", &["-A", operation, "-n", "300"]);
            perftest("ib_atomic_lat", &["-A", operation, "-n", "100"]);
        }
    }
}

mod shared_receive_queues {
    use super::*;

    #[test]
    fn by_perftest() {
        for options in [
            &["--use-srq", "-s", "4096", "-n", "200"][..],
            &["--use-srq", "-q", "4", "-s", "4096", "-n", "200"],
            &["--use-srq", "-c", "UD", "-s", "512", "-n", "200"],
        ] {
            perftest("ib_send_bw", options);
        }
        perftest("ib_send_lat", &["--use-srq", "-s", "64", "-n", "100"]);
    }
}

mod rate_limits {
    use super::*;

    #[test]
    fn of_the_address_vector_hold() {
        let options = [
            "--rate_limit",
            "2.5",
            "--rate_units",
            "g",
            "-s",
            "65536",
            "-n",
            "1000",
            "--report_gbits",
        ];
        let results = results(&perftest("ib_write_bw", &options));
        // The rate on the wire, headers included. A busy machine may be far slower.
        assert!((0.001..2.5).contains(&results[3]), "{results:?}");
    }
}

mod asynchronous_events {
    use super::*;

    #[test]
    fn are_watched() {
        let _alone = alone();
        let (socket, _) = fresh();
        let mut side = Side::start("ibv_asyncwatch", &[], "master", SERVER_IP, &socket);
        // It buffers output to a pipe, so only the fact that it waits is visible.
        std::thread::sleep(Duration::from_millis(300));
        let status = side.0.try_wait().expect("a child");
        assert!(status.is_none(), "{status:?}");
    }
}

mod synchronous {
    use super::*;

    #[test]
    fn identifiers_without_a_channel_wait_for_their_own_events() {
        let _alone = alone();
        let (socket, port) = fresh();
        let port = port.to_string();
        let server = Side::start("rdma_server", &["-p", &port], "master", SERVER_IP, &socket);
        wait_until("rdma_server", || socket.exists());
        let client = Side::start(
            "rdma_client",
            &["-s", SERVER_IP, "-p", &port],
            "slave",
            "10.77.0.1",
            &socket,
        );
        client.finish("rdma_client");
        server.finish("rdma_server");
    }
}

mod lab {
    use super::*;
    use longhaul_rdma::attach;

    /// Below the device's files.
    const RECEIVED: &str = "devices/virtual/infiniband/longhaul0/ports/1/counters/port_rcv_packets";

    /// Starts a client of a lab, and waits until its device has received `frames` frames.
    fn exchanging(name: &str, arguments: &[&str], socket: &Path, frames: u64) -> Side {
        let tree = socket.with_extension("device");
        let mut command = Side::command(name, arguments, "", "10.77.0.1", socket);
        let client = Side::spawn(command.env(attach::ENV_COUNTERS, &tree));
        wait_until(name, || {
            let received = std::fs::read_to_string(tree.join(RECEIVED)).unwrap_or_default();
            received.trim().parse::<u64>().is_ok_and(|received| received >= frames)
        });
        let _ = std::fs::remove_dir_all(&tree);
        client
    }

    #[test]
    fn that_dies_ends_a_transfer_with_retry_exceeded_and_one_message() {
        let _alone = alone();
        let (socket, port) = fresh();
        let port = port.to_string();
        let mut arguments = vec!["-d", "longhaul0", "-R", "-F", "-D", "600", "-p", &port];
        let server = Side::start("ib_write_bw", &arguments, "master", SERVER_IP, &socket);
        wait_until("ib_write_bw", || socket.exists());
        arguments.push(SERVER_IP);
        let client = exchanging("ib_write_bw", &arguments, &socket, 1000);
        drop(server);
        let (status, text) = client.end();
        assert!(status.is_some_and(|status| !status.success()), "{text}");
        assert!(text.contains("Failed status 12"), "{text}");
        assert_eq!(text.matches("ended the link: ").count(), 1, "{text}");
    }

    #[test]
    fn that_is_not_there_is_reported_once() {
        let _alone = alone();
        let (socket, port) = fresh();
        let port = port.to_string();
        let arguments = ["-d", "longhaul0", "-R", "-F", "-p", &port, SERVER_IP];
        let (status, text) = Side::start("ib_write_bw", &arguments, "", "10.77.0.1", &socket).end();
        assert!(status.is_some_and(|status| !status.success()), "{text}");
        assert_eq!(text.matches("no link at").count(), 1, "{text}");
    }

    #[test]
    fn that_serves_another_already_says_so() {
        let _alone = alone();
        let (socket, port) = fresh();
        let port = port.to_string();
        let _server =
            Side::start("rping", &["-s", "-P", "-p", &port], "master", SERVER_IP, &socket);
        wait_until("rping", || socket.exists());
        let client = ["-c", "-a", SERVER_IP, "-p", &port];
        let _first = exchanging("rping", &client, &socket, 1);
        let (status, text) = Side::start("rping", &client, "", "10.77.0.1", &socket).end();
        assert!(status.is_some_and(|status| !status.success()), "{text}");
        assert!(text.contains("interface id 0 is already connected; the port is down"), "{text}");
    }
}
