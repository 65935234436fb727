//! Tests on an Ethernet segment, in a network namespace: one of Debian's unmodified programs at two
//! TAP devices on a bridge, and a dedicated program at a TAP device that does not exist. Without
//! root they say so and pass.

use crate::alone::alone;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const SERVER: &str = "192.168.179.1";
const CLIENT: &str = "192.168.179.2";

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

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// Runs `test` in a thread with its own network namespace, which child processes share.
fn on_a_bridge(test: impl FnOnce() + Send) {
    let _alone = alone();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(longhaul_namespace::test_name());
        let tested = thread.spawn_scoped(scope, || {
            // SAFETY: affects only this thread, which ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = std::io::Error::last_os_error();
                let why = format!("no network namespace of its own ({error}); run as root");
                return longhaul_namespace::skip(why);
            }
            ip("link add br0 type bridge");
            ip("link set br0 up");
            for tap in ["t0", "t1"] {
                ip(&format!("tuntap add {tap} mode tap"));
                ip(&format!("link set {tap} master br0 up"));
            }
            test();
        });
        if let Err(panic) = tested.expect("a thread").join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn rping(tap: &str, own: &str, arguments: &str) -> Child {
    let program = Path::new("/usr/bin/rping");
    assert!(program.exists(), "rping is missing: apt-get install rdmacm-utils");
    Command::new("timeout")
        .arg("240")
        .arg(program)
        .args(arguments.split(' '))
        .env("LD_PRELOAD", library())
        .env("LONGHAUL_TAP", tap)
        .env("LONGHAUL_IP", own)
        .env("LONGHAUL_PREFIX_LEN", "24")
        .env("LONGHAUL_PATH_MTU", "1024")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout, of coreutils")
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

#[test]
fn programs_find_each_other() {
    on_a_bridge(|| {
        let server = rping("t0", SERVER, &format!("-s -a {SERVER} -C 20 -v"));
        // It may not listen yet: the client is then refused, and retries.
        for _ in 0..50 {
            let client = rping("t1", CLIENT, &format!("-c -a {SERVER} -C 20 -v"))
                .wait_with_output()
                .unwrap();
            let said = text(&client);
            if said.contains("ADDR_ERROR")
                || said.contains("REJECTED")
                || said.contains("UNREACHABLE")
            {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            assert_eq!(said.matches("ping data: rdma-ping-").count(), 20, "{said}");
            let served = server.wait_with_output().unwrap();
            assert!(text(&served).contains("server ping data: rdma-ping-19"), "{}", text(&served));
            return;
        }
        panic!("the server never listened");
    });
}

#[test]
fn a_peer_that_is_not_there_is_an_address_error() {
    on_a_bridge(|| {
        for (peer, errno, why) in [
            ("192.168.179.77", 110, "nobody answers for it"),
            ("10.1.2.3", 101, "there is no route to it"),
        ] {
            let client =
                rping("t1", CLIENT, &format!("-c -a {peer} -C 1")).wait_with_output().unwrap();
            let said = text(&client);
            assert!(!client.status.success(), "{said}");
            assert!(said.contains(&format!("RDMA_CM_EVENT_ADDR_ERROR, error -{errno}")), "{said}");
            assert!(said.contains(&format!("longhaul: {peer} cannot be reached: {why}")), "{said}");
        }
    });
}

#[test]
fn what_could_not_be_resolved_can_be_tried_again() {
    let _alone = alone();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/resolve_again.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("resolve_again");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .args(["-lrdmacm", "-libverbs"])
        .output()
        .expect("cc is missing: apt-get install gcc");
    assert!(
        compiled.status.success(),
        "apt-get install librdmacm-dev; cc says:\n{}",
        text(&compiled)
    );
    let output = Command::new("timeout")
        .arg("240")
        .arg(&program)
        .env("LD_PRELOAD", library())
        .env("LONGHAUL_TAP", "lh-nowhere")
        .env("LONGHAUL_IP", SERVER)
        .env("LONGHAUL_PREFIX_LEN", "24")
        .output()
        .expect("timeout, of coreutils");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("lh-nowhere"), "{said}");
}
