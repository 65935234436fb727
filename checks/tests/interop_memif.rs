//! Our memif ports with DPDK's net_memif in both roles. Skipped, loudly, if testpmd is not
//! installed.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::testpmd::Testpmd;
use longhaul_checks::{RuntimeDir, Turn};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::{LinkState, Port};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// From the shortest frame to a jumbo frame of five of testpmd's buffers.
const LENGTHS: [usize; 12] = [14, 60, 64, 1514, 2047, 2048, 2049, 4096, 4097, 6145, 9000, 9238];

/// Our role; testpmd has the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Master,
    Slave,
}

const ROLES: [Role; 2] = [Role::Master, Role::Slave];

struct Scene {
    role: Role,
    dir: RuntimeDir,
    _turn: Turn,
}

impl Scene {
    /// `None`: skipped.
    fn new(role: Role, what: &str) -> Option<Self> {
        if let Some(reason) = Testpmd::missing() {
            skip_loudly(what, &reason);
            return None;
        }
        Some(Scene { role, dir: RuntimeDir::new(), _turn: Turn::take() })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("memif.sock")
    }

    fn port(&self, secret: Option<&str>) -> MemifPort {
        let config = MemifConfig {
            frame_bytes_max: 9238,
            ring_size_log2: 9,
            secret: secret.map(str::to_owned),
            ..MemifConfig::new("longhaul")
        };
        let opened = match self.role {
            Role::Master => MemifPort::master(self.socket(), 0, config),
            Role::Slave => MemifPort::slave(self.socket(), 0, config),
        };
        opened.expect("a port")
    }

    /// testpmd, which returns every frame. `more`: settings of its device.
    fn echo(&self, more: &str) -> Testpmd {
        let role = if self.role == Role::Master { "client" } else { "server" };
        let socket = self.socket();
        let device =
            format!("net_memif0,role={role},socket={},socket-abstract=no{more}", socket.display());
        let mut testpmd = Testpmd::start(&[device], &["--forward-mode=io", "--port-topology=loop"]);
        testpmd.command("start");
        testpmd
    }
}

fn until<T>(what: &str, mut turn: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = turn() {
            return value;
        }
        assert!(Instant::now() < deadline, "still waiting until {what}");
        std::thread::yield_now();
    }
}

#[track_caller]
fn wait_for(port: &mut MemifPort, state: LinkState) {
    let deadline = Instant::now() + LIMIT;
    while port.service().expect("no violation") != state {
        let why = port.last_disconnect();
        assert!(
            Instant::now() < deadline,
            "the link of {:?} is not {state:?}: {why:?}",
            port.capabilities()
        );
        std::thread::yield_now();
    }
}

#[track_caller]
fn ended(testpmd: Testpmd) {
    let ended = testpmd.quit();
    assert!(ended.status.success(), "{ended}");
}

fn byte(number: usize, at: usize) -> u8 {
    (number.wrapping_mul(151) ^ at.wrapping_mul(7) ^ (at >> 8)) as u8
}

/// Sends `lengths` with this many in flight, and checks that each returns unchanged and in order.
fn echo(
    port: &mut MemifPort,
    window: usize,
    lengths: impl ExactSizeIterator<Item = usize> + Clone,
) {
    let (count, mut sent, mut came) = (lengths.len(), 0, 0);
    let mut to_send = lengths.clone();
    let mut expected = lengths;
    until("all frames came back", || {
        port.service().expect("no violation");
        let may = (window - (sent - came)).min(to_send.len()).min(port.transmit_room());
        for len in to_send.by_ref().take(may) {
            let fill = &mut |out: &mut [u8]| {
                out.iter_mut().enumerate().for_each(|(at, out)| *out = byte(sent, at));
            };
            assert!(port.transmit(len, fill).expect("no violation"), "room was promised");
            sent += 1;
        }
        port.flush().expect("a flush");
        let received = port.receive(64, &mut |frame| {
            let len = expected.next().expect("no more than was sent");
            assert_eq!(frame.len(), len, "frame {came}");
            assert!(
                frame.iter().enumerate().all(|(at, is)| *is == byte(came, at)),
                "frame {came} differs"
            );
            came += 1;
        });
        received.expect("no violation");
        (came == count).then_some(())
    });
}

/// Every length, chained over several buffers if testpmd's are too short.
fn echo_all(port: &mut MemifPort, window: usize) {
    echo(port, 1, LENGTHS.into_iter());
    let many: Vec<usize> = (0..8_000).map(|number| 14 + number * 997 % 9225).collect();
    echo(port, window, many.into_iter());
    let counters = port.counters();
    assert_eq!((counters.rx_drops.total(), counters.tx_drops.total()), (0, 0), "{counters:?}");
    assert_eq!(counters.peer_violations, 0);
}

#[test]
fn frames_of_one_and_of_several_buffers_come_back_as_they_were() {
    for role in ROLES {
        let Some(scene) = Scene::new(role, "memif against testpmd") else { return };
        // As many in flight as its ring has room for: it drops the others.
        for (more, window) in [("", 48), (",bsize=1024,rsize=9", 48), (",rsize=6", 8)] {
            let mut port = scene.port(None);
            let mut testpmd = scene.echo(more);
            wait_for(&mut port, LinkState::Up);
            echo_all(&mut port, window);
            testpmd.command("stop");
            // Before our port is closed: net_memif's threads may both close a port whose peer has
            // left, and crash.
            ended(testpmd);
        }
    }
}

#[test]
fn whoever_comes_back_is_connected_again() {
    for role in ROLES {
        let Some(scene) = Scene::new(role, "memif that reconnects to testpmd") else { return };
        let mut port = scene.port(None);
        let testpmd = scene.echo("");
        wait_for(&mut port, LinkState::Up);
        echo(&mut port, 4, LENGTHS.into_iter());
        // A process that quits disconnects; one that is killed does not.
        ended(testpmd);
        wait_for(&mut port, LinkState::Down);
        let testpmd = scene.echo("");
        wait_for(&mut port, LinkState::Up);
        echo(&mut port, 4, LENGTHS.into_iter());
        testpmd.kill();
        wait_for(&mut port, LinkState::Down);
        if role == Role::Slave {
            // As server it does not take over the socket that it could not remove.
            std::fs::remove_file(scene.socket()).expect("a socket");
        }
        let mut testpmd = scene.echo("");
        wait_for(&mut port, LinkState::Up);
        echo(&mut port, 4, LENGTHS.into_iter());
        // Our port closes and reopens while testpmd runs. testpmd must not forward at that moment:
        // net_memif unmaps the rings that its forwarding thread reads.
        for _ in 0..3 {
            let stopped = testpmd.command("stop");
            assert!(stopped.contains("TX-dropped: 0"), "{stopped}");
            drop(port);
            port = scene.port(None);
            if role == Role::Master {
                // A client of net_memif connects once, when it is started.
                testpmd.command("port stop 0");
                testpmd.command("port start 0");
            }
            wait_for(&mut port, LinkState::Up);
            testpmd.command("start");
            echo(&mut port, 4, LENGTHS.into_iter());
        }
        assert_eq!(port.counters().peer_violations, 0);
    }
}

#[test]
fn a_port_that_testpmd_stops_and_starts_is_up_again() {
    for role in ROLES {
        let Some(scene) = Scene::new(role, "memif to a port that testpmd stops") else { return };
        let mut port = scene.port(None);
        let mut testpmd = scene.echo("");
        wait_for(&mut port, LinkState::Up);
        echo(&mut port, 4, LENGTHS.into_iter());
        testpmd.command("stop");
        testpmd.command("port stop 0");
        testpmd.command("port start 0");
        testpmd.command("start");
        wait_for(&mut port, LinkState::Up);
        until("it answers again", || {
            wait_for(&mut port, LinkState::Up);
            // Its ring may be full of frames that it has not returned.
            port.transmit(60, &mut |out| out.fill(1)).expect("no violation");
            port.flush().expect("a flush");
            std::thread::sleep(Duration::from_millis(20));
            port.receive(64, &mut |_| {}).expect("no violation").gt(&0).then_some(())
        });
    }
}

#[test]
fn chains_with_empty_buffers_are_taken() {
    for role in ROLES {
        let Some(scene) = Scene::new(role, "memif chains from testpmd") else { return };
        let mut port = scene.port(None);
        let mut testpmd = scene.echo("");
        wait_for(&mut port, LinkState::Up);
        testpmd.command("stop");
        testpmd.command("set fwd txonly");
        for (segments, len) in
            [("64,0,1500", 1564), ("2000,2000,2000,1000", 7000), ("60,0,0,1", 61)]
        {
            let set = testpmd.command(&format!("set txpkts {segments}"));
            testpmd.command("start");
            let mut right = 0;
            until("frames come", || {
                port.service().expect("no violation");
                port.receive(64, &mut |frame| right += usize::from(frame.len() == len))
                    .expect("no violation");
                (right >= 2000).then_some(())
            });
            testpmd.command("stop");
            until("no frame comes", || {
                let rest = port
                    .receive(64, &mut |frame| assert_eq!(frame.len(), len, "{segments}: {set}"));
                (rest.expect("no violation") == 0).then_some(())
            });
        }
        assert_eq!(port.counters().rx_drops.total(), 0);
    }
}

#[test]
fn a_wrong_secret_is_refused_and_the_right_one_taken() {
    for role in ROLES {
        let Some(scene) = Scene::new(role, "memif with a secret against testpmd") else { return };
        let mut port = scene.port(Some("fibre"));
        let testpmd = scene.echo(",secret=copper");
        let until_then = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until_then {
            // As master we report a client with the wrong one.
            let _ = port.service();
            assert_eq!(port.link_state(), LinkState::Down, "{role:?}");
        }
        testpmd.quit();
        let testpmd = scene.echo(",secret=fibre");
        until("the right secret is taken", || {
            matches!(port.service(), Ok(LinkState::Up)).then_some(())
        });
        echo(&mut port, 4, LENGTHS.into_iter());
        testpmd.quit();
    }
}
