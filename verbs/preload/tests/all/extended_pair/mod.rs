//! Runs `extended_verbs.c`, compiled here, as two processes joined back to back.

use crate::alone::alone;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// Path of the program, compiled on first use.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/extended_verbs.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extended_verbs");
        let output = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-libverbs")
            .output()
            .expect("cc: apt-get install gcc");
        let diagnostics = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "apt-get install gcc libibverbs-dev; cc says:\n{diagnostics}"
        );
        program
    })
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
    fn start(
        scenario: &str,
        kind: &str,
        (role, ip): (&str, &str),
        socket: &Path,
        other: UnixStream,
    ) -> Side {
        let test = std::env::current_exe().expect("the path of this test");
        let library = test.with_file_name("liblonghaul_preload.so");
        assert!(
            library.exists(),
            "{} does not exist: cargo builds it with this test",
            library.display()
        );
        let child = Command::new(program())
            .args([scenario, kind])
            .env("LD_PRELOAD", library)
            .env("LONGHAUL_MEMIF_SOCKET", socket)
            .env("LONGHAUL_MEMIF_ROLE", role)
            .env("LONGHAUL_IP", ip)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Side(child.unwrap_or_else(|error| panic!("{scenario}: {error}")))
    }

    /// Waits for a successful exit and returns the output.
    fn finish(mut self, what: &str) -> String {
        let begun = Instant::now();
        let status = loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => break status.success(),
                None if begun.elapsed() > LIMIT => break false,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let _ = self.0.kill();
        let printed = self.0.stdout.take().map(read_all).unwrap_or_default();
        let complaint = self.0.stderr.take().map(read_all).unwrap_or_default();
        assert!(status, "{what} failed or was not done after {LIMIT:?}\n{complaint}");
        printed
    }
}

fn read_all(mut pipe: impl Read) -> String {
    let mut text = String::new();
    let _ = pipe.read_to_string(&mut text);
    text
}

/// Runs a scenario over a transport (`rc`, `uc` or `ud`) until it succeeds, and returns its output.
pub fn run(scenario: &str, kind: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let _alone = alone();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let socket =
        std::env::temp_dir().join(format!("longhaul-extended-{}-{count}.sock", std::process::id()));
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let peer = Side::start("peer", kind, ("master", "10.77.0.2"), &socket, one);
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < LIMIT, "the peer of {scenario} over {kind} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let side = Side::start(scenario, kind, ("slave", "10.77.0.1"), &socket, other);
    let printed = side.finish(&format!("{scenario} over {kind}"));
    peer.finish(&format!("the peer of {scenario} over {kind}"));
    printed
}
