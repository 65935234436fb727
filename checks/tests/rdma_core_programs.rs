//! Unmodified programs of rdma-core, qperf and fio, as two processes back to back.

use longhaul_checks::{
    BackToBack, CLIENT_IP, Finished, Program, Ready, SERVER_IP, Turn, free_tcp_port, require,
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// `program OPTIONS` and `program OPTIONS CLIENT_OPTIONS`, connected by RDMA-CM.
fn by_rdma_cm(program: &str, options: &str, client_options: &str) -> (Finished, Finished) {
    require(program, "rdmacm-utils");
    let _turn = Turn::take();
    let server = format!("{program} {options}");
    let client = format!("{server} {client_options}");
    BackToBack::new().pair(&server, &client, Ready::Attached, LIMIT)
}

mod ping_pong {
    use super::*;

    fn ping_pong(transport: &str, options: &[&str]) {
        let program = format!("ibv_{transport}_pingpong");
        require(&program, "ibverbs-utils");
        let _turn = Turn::take();
        for options in options {
            let port = free_tcp_port();
            let server = format!("{program} -d longhaul0 -g 1 -p {port} -n 200 {options}");
            let client = format!("{server} 127.0.0.1");
            let (_, client) = BackToBack::new().pair(&server, &client, Ready::Tcp(port), LIMIT);
            assert!(client.stdout.contains("200 iters"), "{client}");
        }
    }

    #[test]
    fn of_reliable_connections() {
        ping_pong("rc", &["", "-e", "-s 64 -c", "-s 100000 -m 1024 -c", "-t", "-N -c"]);
    }

    #[test]
    fn of_unreliable_connections() {
        ping_pong("uc", &["", "-e", "-s 64 -c", "-s 100000 -m 1024"]);
    }

    #[test]
    fn of_datagrams() {
        ping_pong("ud", &["", "-e", "-s 64 -c", "-s 1024"]);
    }

    #[test]
    fn of_several_connections_over_one_shared_receive_queue() {
        ping_pong("srq", &["", "-e", "-q 8 -s 64 -c", "-q 16 -e -s 10000"]);
    }
}

mod rdma_cm {
    use super::*;

    #[test]
    fn several_connections_at_once() {
        let (_, client) = by_rdma_cm("ucmatose", "-C 20 -c 5 -S 1000", &format!("-s {SERVER_IP}"));
        assert!(client.stdout.contains("return status 0"), "{client}");
    }

    #[test]
    fn several_connections_that_move_to_another_channel() {
        let (_, client) = by_rdma_cm("ucmatose", "-C 20 -c 5 -m", &format!("-s {SERVER_IP}"));
        assert!(client.stdout.contains("return status 0"), "{client}");
    }

    #[test]
    fn datagram_services() {
        let (server, client) = by_rdma_cm("udaddy", "-C 10 -c 3", &format!("-s {SERVER_IP}"));
        assert!(client.stdout.contains("return status 0"), "{client}");
        assert!(server.stdout.contains("return status 0"), "{server}");
    }

    #[test]
    fn multicast() {
        require("mckey", "rdmacm-utils");
        let _turn = Turn::take();
        let place = BackToBack::new();
        let receiver = format!("mckey -m 239.1.2.3 -C 10 -b {SERVER_IP}");
        let sender = format!("mckey -m 239.1.2.3 -s -C 10 -b {CLIENT_IP}");
        let (receiver, _) = place.pair(&receiver, &sender, Ready::Attached, LIMIT);
        assert!(receiver.stdout.contains("return status 0"), "{receiver}");
    }

    #[test]
    fn identifiers_without_a_channel() {
        require("rdma_server", "rdmacm-utils");
        let _turn = Turn::take();
        let client = format!("rdma_client -s {SERVER_IP}");
        BackToBack::new().pair("rdma_server", &client, Ready::Attached, LIMIT);
    }

    #[test]
    fn a_hundred_connections_in_no_time() {
        require("cmtime", "rdmacm-utils");
        let _turn = Turn::take();
        let place = BackToBack::new();
        // The server never ends.
        let _server =
            place.start(&mut place.server("cmtime -c 100"), Ready::Attached).expect("a server");
        let client = format!("cmtime -s {SERVER_IP} -c 100");
        let client = Program::start(&mut place.client(&client)).succeed(LIMIT);
        let connect = client.stdout.lines().find(|line| line.trim_start().starts_with("connect "));
        assert!(connect.is_some(), "{client}");
    }

    #[test]
    fn pings_with_validation() {
        require("rping", "rdmacm-utils");
        let _turn = Turn::take();
        let options = format!("-a {SERVER_IP} -C 20 -S 4000 -V");
        let client = format!("rping -c {options}");
        BackToBack::new().pair(&format!("rping -s {options}"), &client, Ready::Attached, LIMIT);
    }
}

mod sockets_over_rdma {
    use super::*;

    #[test]
    fn copy_a_file() {
        require("rcopy", "rdmacm-utils");
        let _turn = Turn::take();
        let place = BackToBack::new();
        let server = place.start(&mut place.server("rcopy"), Ready::Attached).expect("a server");
        let copied =
            std::env::temp_dir().join(format!("longhaul-check-rcopy-{}", std::process::id()));
        let line = format!("rcopy /usr/bin/rcopy {SERVER_IP}:{}", copied.display());
        Program::start(&mut place.client(&line)).succeed(LIMIT);
        drop(server);
        let copy = std::fs::read(&copied).expect("the copy");
        std::fs::remove_file(&copied).expect("the copy");
        assert_eq!(copy, std::fs::read("/usr/bin/rcopy").expect("the original"));
    }

    #[test]
    fn stream() {
        by_rdma_cm("rstream", "-S 4096 -I 10 -C 10", &format!("-s {SERVER_IP}"));
    }
}

mod asynchronous_events {
    use super::*;

    #[test]
    fn are_waited_for() {
        require("ibv_asyncwatch", "ibverbs-utils");
        let _turn = Turn::take();
        let place = BackToBack::new();
        let mut watch = Program::start(&mut place.server("stdbuf -oL ibv_asyncwatch -d longhaul0"));
        watch.wait_for_output("async event FD", LIMIT);
        watch.end_within(Duration::from_secs(1)).expect_err("it waits for ever");
    }
}

mod storage {
    use super::*;
    use std::fs;

    /// fio reads its job from files. 64 messages, of which the client keeps `depth` in flight; the
    /// server posts `receives`.
    fn fio(verb: &str, depth: u32, receives: u32) {
        require("fio", "fio");
        let _turn = Turn::take();
        let place = BackToBack::new();
        let dir = std::env::temp_dir();
        let name =
            |side: &str| dir.join(format!("longhaul-check-{}-{side}.fio", std::process::id()));
        let both = format!("[job]\nioengine=rdma\nport={}\nbs=64k\nsize=4m\n", free_tcp_port());
        fs::write(name("server"), format!("{both}iodepth={receives}\nrw=read\n")).expect("a file");
        let client =
            format!("{both}iodepth={depth}\nrw=write\nhostname={SERVER_IP}\nverb={verb}\n");
        fs::write(name("client"), client).expect("a file");
        let line = |side| format!("fio {}", name(side).display());
        let (_, client) = place.pair(&line("server"), &line("client"), Ready::Attached, LIMIT);
        assert!(client.stdout.contains("io=4096KiB"), "{client}");
        for side in ["server", "client"] {
            fs::remove_file(name(side)).expect("a file");
        }
    }

    #[test]
    fn fio_writes() {
        fio("write", 8, 8);
    }

    /// fio connects without RNR retries, and a client that fails waits forever. A server without a
    /// processor posts no further receives, so it posts one for each message in advance.
    #[test]
    fn fio_sends() {
        fio("send", 1, 64);
    }
}
