//! Tests with DPDK's virtual devices in this process, without huge pages. All of them share one
//! DPDK.

use crate::shim::{self, BURST_MAX, RawFrame};
use crate::{DpdkConfig, DpdkError, DpdkPort, Spread, eal, open_queues};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::{DropReason, LinkState, Port};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod interfaces;
mod lending;

const LIMIT: Duration = Duration::from_secs(60);
/// Held while a test uses DPDK's memory: some tests take all of it briefly.
static MEMORY: Mutex<()> = Mutex::new(());
/// Held by those tests.
static ALL_MEMORY: Mutex<()> = Mutex::new(());

fn open(config: &DpdkConfig) -> Result<DpdkPort, DpdkError> {
    Ok(open_ports(config, 1)?.remove(0))
}

fn open_ports(config: &DpdkConfig, ports: usize) -> Result<Vec<DpdkPort>, DpdkError> {
    eal::start("--no-huge -m 768").expect("DPDK");
    let _turn = turn(&MEMORY);
    open_queues(config, NonZeroUsize::new(ports).unwrap())
}

fn turn(of: &Mutex<()>) -> MutexGuard<'_, ()> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn opened(devargs: &str) -> DpdkPort {
    open(&DpdkConfig::new(devargs)).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "still waiting until {what}");
        std::thread::yield_now();
    }
}

#[track_caller]
fn up(port: &mut impl Port) {
    until("the link is up", || port.service().expect("a port") == LinkState::Up);
}

fn byte(number: usize, at: usize) -> u8 {
    (number.wrapping_mul(151) ^ at.wrapping_mul(7) ^ (at >> 8)) as u8
}

fn send(port: &mut impl Port, number: usize, len: usize) -> bool {
    let fill = &mut |out: &mut [u8]| {
        out.iter_mut().enumerate().for_each(|(at, out)| *out = byte(number, at))
    };
    port.transmit(len, fill).expect("a length that it takes")
}

#[track_caller]
fn check(frame: &[u8], number: usize, len: usize) {
    assert_eq!(frame.len(), len, "frame {number}");
    assert!(
        frame.iter().enumerate().all(|(at, is)| *is == byte(number, at)),
        "frame {number} differs"
    );
}

/// Sends from one port to the other, with at most `window` frames in flight, and checks each.
fn carry(from: &mut impl Port, to: &mut impl Port, window: usize, lengths: &[usize]) {
    let (mut sent, mut came) = (0, 0);
    until("all frames came", || {
        from.service().expect("a port");
        to.service().expect("a port");
        while sent < lengths.len() && sent - came < window && from.transmit_room() > 0 {
            assert!(send(from, sent, lengths[sent]), "room was promised");
            sent += 1;
        }
        from.flush().expect("a port");
        to.receive(64, &mut |frame| {
            check(frame, came, lengths[came]);
            came += 1;
        })
        .expect("a port");
        came == lengths.len()
    });
}

fn many_lengths(most: usize) -> Vec<usize> {
    [14, 60, 2048, most]
        .into_iter()
        .chain((0..5000).map(|number| 14 + number * 997 % (most - 13)))
        .collect()
}

fn echo(port: &mut DpdkPort, lengths: &[usize]) {
    up(port);
    let (mut sent, mut came) = (0, 0);
    until("all frames came back", || {
        port.service().expect("a port");
        while sent < lengths.len() && sent - came < 200 && port.transmit_room() > 0 {
            assert!(send(port, sent, lengths[sent]), "room was promised");
            sent += 1;
        }
        port.flush().expect("a port");
        port.receive(64, &mut |frame| {
            check(frame, came, lengths[came]);
            came += 1;
        })
        .expect("a port");
        came == lengths.len()
    });
}

/// A path in the temporary directory, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Scratch(std::env::temp_dir().join(format!("longhaul-dpdk-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

mod frames {
    use super::*;

    #[test]
    fn of_every_length_come_back_by_a_ring() {
        let config = DpdkConfig { buffer_bytes: 9280, ..DpdkConfig::new("net_ring_whole0") };
        let mut port = open(&config).unwrap();
        let lengths = many_lengths(9238);
        echo(&mut port, &lengths);
        let counters = port.counters();
        assert_eq!(
            (counters.tx_frames, counters.rx_frames),
            (lengths.len() as u64, lengths.len() as u64)
        );
        assert_eq!(
            (counters.rx_drops.total(), counters.tx_drops.total(), counters.link_ups),
            (0, 0, 1)
        );
        assert_eq!(port.dpdk_counters().rx_gathered, 0, "buffers hold whole frames");
    }

    #[test]
    fn longer_than_a_buffer_lie_in_several() {
        let config = DpdkConfig { buffer_bytes: 1024, ..DpdkConfig::new("net_ring_parts0") };
        let mut port = open(&config).unwrap();
        let lengths = many_lengths(9238);
        echo(&mut port, &lengths);
        let gathered = lengths.iter().filter(|len| **len > 1024).count();
        assert_eq!(port.dpdk_counters().rx_gathered, gathered as u64);
    }

    #[test]
    fn of_lengths_that_do_not_fit_are_refused() {
        let config = DpdkConfig { mtu: Some(1500), ..DpdkConfig::new("net_ring_short0") };
        let mut port = open(&config).unwrap();
        up(&mut port);
        assert!(send(&mut port, 0, 1522));
        for len in [13, 1523] {
            assert!(port.transmit(len, &mut |_| panic!("not to be filled")).is_err(), "{len}");
        }
        assert_eq!((port.mtu(), port.capabilities().frame_bytes_max), (1500, 1522));
    }
}

mod queues {
    use super::*;

    #[test]
    fn have_their_turns_although_one_of_them_is_always_full() {
        let devargs = "net_null30,size=100";
        let config =
            DpdkConfig { rx_queues: 3, spread: Spread::ByDevice, ..DpdkConfig::new(devargs) };
        let mut port = open(&config).unwrap();
        up(&mut port);
        for turn in 1..=7 {
            assert_eq!(port.receive(64, &mut |frame| assert_eq!(frame.len(), 100)).unwrap(), 64);
            assert_eq!(port.next_queue(), turn % 3);
        }
        // More than one burst at once.
        assert_eq!(port.receive(1000, &mut |_| {}).unwrap(), 1000);
        assert_eq!(port.counters().rx_frames, 7 * 64 + 1000);
    }

    #[test]
    fn of_one_device_serve_as_many_threads() {
        let config =
            DpdkConfig { spread: Spread::ByDevice, ..DpdkConfig::new("net_ring_threads0") };
        let ports = open_ports(&config, 3).unwrap();
        std::thread::scope(|threads| {
            for mut port in ports {
                threads.spawn(move || {
                    echo(&mut port, &many_lengths(9238));
                    assert_eq!(port.counters().rx_frames, port.counters().tx_frames);
                });
            }
        });
        // Dropping the last of them detached the device.
        opened("net_ring_threads0");
    }

    #[test]
    fn of_one_device_keep_to_themselves() {
        let config = DpdkConfig {
            rx_queues: 2,
            spread: Spread::ByDevice,
            ..DpdkConfig::new("net_ring_own0")
        };
        let mut ports = open_ports(&config, 2).unwrap();
        // Frames that the second port receives from ring 1 go to the device's second receive queue,
        // which is the first port's.
        up(&mut ports[1]);
        assert!(send(&mut ports[1], 5, 100));
        ports[1].flush().unwrap();
        assert_eq!(ports[1].receive(64, &mut |_| {}).unwrap(), 0);
        assert_eq!(ports[0].receive(64, &mut |frame| check(frame, 5, 100)).unwrap(), 1);
        let pools: Vec<_> = ports.iter().map(DpdkPort::pool).collect();
        assert_ne!(pools[0], pools[1]);
        // The device keeps running with the remaining ports.
        drop(ports.remove(0));
        up(&mut ports[0]);
        assert!(send(&mut ports[0], 6, 100));
    }
}

mod a_peer {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn memif(path: &Scratch, is_master: bool) -> MemifPort {
        let config =
            MemifConfig { frame_bytes_max: 9238, ring_size_log2: 9, ..MemifConfig::new("test") };
        let opened = if is_master {
            MemifPort::master(&path.0, 0, config)
        } else {
            MemifPort::slave(&path.0, 0, config)
        };
        opened.unwrap()
    }

    /// Set in a process that runs a single test.
    const ALONE: &str = "LONGHAUL_DPDK_TEST_ALONE";

    /// DPDK 22.11's net_memif crashes at one disconnect in hundreds: its interrupt thread reads a
    /// freed control channel. The test therefore runs in its own process, and is repeated if that
    /// crashes.
    fn apart(test: &str, body: impl FnOnce()) {
        if std::env::var_os(ALONE).is_some() {
            return body();
        }
        for _ in 0..3 {
            let program = std::env::current_exe().unwrap();
            let ended =
                Command::new(program).args(["--exact", test]).env(ALONE, "1").output().unwrap();
            if ended.status.success() {
                assert!(
                    String::from_utf8_lossy(&ended.stdout).contains("1 passed"),
                    "{test}: no such test"
                );
                return;
            }
            let told = [ended.stdout, ended.stderr].concat();
            assert_eq!(
                ended.status.signal(),
                Some(libc::SIGSEGV),
                "{}",
                String::from_utf8_lossy(&told)
            );
            eprintln!("!!! {test}: net_memif has crashed in DPDK's interrupt thread; once more");
        }
        panic!("net_memif crashed three times in a row");
    }

    #[test]
    fn is_reached_by_shared_memory_in_both_roles_and_comes_back() {
        apart(
            "tests::a_peer::is_reached_by_shared_memory_in_both_roles_and_comes_back",
            by_shared_memory_in_both_roles,
        );
    }

    fn by_shared_memory_in_both_roles() {
        for (role, other_is_master) in [("server", false), ("client", true)] {
            let path = Scratch::new(role);
            let socket = path.0.display();
            let mut port = opened(&format!(
                "net_memif_{role}0,role={role},socket={socket},socket-abstract=no"
            ));
            assert_eq!(port.link_state(), LinkState::Down);
            assert!(send(&mut port, 0, 60), "taken and dropped");
            for round in 1..=3 {
                let mut peer = memif(&path, other_is_master);
                until("both are up", || {
                    let states = (port.service().unwrap(), peer.service().unwrap());
                    states == (LinkState::Up, LinkState::Up)
                });
                carry(&mut port, &mut peer, 40, &many_lengths(9238));
                carry(&mut peer, &mut port, 40, &many_lengths(9238));
                drop(peer);
                until("it is noticed", || port.service().unwrap() == LinkState::Down);
                assert_eq!(port.counters().link_ups, round);
            }
            assert_eq!(port.counters().tx_drops.get(DropReason::LinkDown), 1);
        }
    }

    #[test]
    fn in_a_capture_file_is_read_and_written() {
        let (read, written) = (Scratch::new("in.pcap"), Scratch::new("out.pcap"));
        // Microseconds, Ethernet; three frames.
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
            file.extend(word.to_ne_bytes());
        }
        let lengths = [60_usize, 1514, 5000];
        for (number, len) in lengths.into_iter().enumerate() {
            for word in [1, number as u32, len as u32, len as u32] {
                file.extend(word.to_ne_bytes());
            }
            file.extend((0..len).map(|at| byte(number, at)));
        }
        std::fs::write(&read.0, &file).unwrap();
        let devargs =
            format!("net_pcap_file0,rx_pcap={},tx_pcap={}", read.0.display(), written.0.display());
        let mut port = opened(&devargs);
        up(&mut port);
        let mut came = 0;
        until("the file is read", || {
            port.receive(64, &mut |frame| {
                check(frame, came, lengths[came]);
                came += 1;
            })
            .unwrap();
            came == lengths.len()
        });
        for (number, len) in lengths.into_iter().enumerate() {
            assert!(send(&mut port, number, len));
        }
        port.flush().unwrap();
        drop(port);
        let copy = std::fs::read(&written.0).unwrap();
        let frames = |file: &[u8]| {
            let mut rest = &file[24..];
            let mut frames = Vec::new();
            while !rest.is_empty() {
                let len = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
                frames.push(rest[16..16 + len].to_vec());
                rest = &rest[16 + len..];
            }
            frames
        };
        assert!(frames(&copy) == frames(&file));
    }
}

mod trouble {
    use super::*;

    fn refused(config: &DpdkConfig) -> String {
        match open(config) {
            Ok(port) => panic!("{:?} was opened", port.capabilities()),
            Err(error) => error.to_string(),
        }
    }

    /// Exceeds the memory of these tests.
    fn too_large(devargs: &str) -> DpdkConfig {
        let spread = Spread::ByDevice;
        DpdkConfig { queue_frames: 32768, rx_queues: 4, spread, ..DpdkConfig::new(devargs) }
    }

    #[test]
    fn is_told_in_one_line_with_its_cure() {
        let _alone = turn(&ALL_MEMORY);
        let new = DpdkConfig::new;
        for (config, words) in [
            (new("net_nosuch0"), ["net_nosuch0", "apt-get install librte-meta-net"]),
            (new("net_memif9,role=nobody"), ["Unknown role: nobody", "apt-get install"]),
            // The driver reports success, but creates no port.
            (new("net_null43,copy=1,no-rx=1"), ["net_null43,copy=1,no-rx=1", "no-rx arguments"]),
            (new("ffff:ff:1f.7"), ["no PCI device", "dpdk-devbind.py --status-dev net"]),
            (new(""), ["the device", "arguments behind commas"]),
            (DpdkConfig { mtu: Some(40), ..new("net_null40") }, ["the MTU is 40", "68 to 16362"]),
            (DpdkConfig { rx_queues: 0, ..new("net_null40") }, ["is 0", "1 to 64"]),
            (
                DpdkConfig { rx_queues: 2, ..new("net_memif8") },
                ["has 1 receive queue,", "--dpdk-queues=1"],
            ),
            (
                DpdkConfig { rx_queues: 2, ..new("net_ring_no0") },
                ["does not offer", "--dpdk-spread=device"],
            ),
            (
                DpdkConfig { rx_queues: 2, ..new("net_null40") },
                ["key cannot be set", "--dpdk-queues=1"],
            ),
            (
                DpdkConfig { rx_queues: 17, spread: Spread::ByDevice, ..new("net_ring_no0") },
                ["has 16 receive queues, and 17", "--dpdk-queues=1"],
            ),
            (too_large("net_null40"), ["no memory for", "'-m "]),
        ] {
            let error = refused(&config);
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn with_a_device_leaves_it_for_another_attempt() {
        let _alone = turn(&ALL_MEMORY);
        refused(&too_large("net_null41"));
        let first = opened("net_null41");
        let error = refused(&DpdkConfig::new("net_null41"));
        assert!(error.contains("net_null41 is in use"), "{error}");
        drop(first);
        opened("net_null41");
    }

    #[test]
    fn other_arguments_than_those_it_runs_with_are_refused() {
        opened("net_null42");
        let error = eal::start("--no-huge -m 64").unwrap_err().to_string();
        assert!(error.contains("--no-huge -m 768"), "{error}");
    }

    #[test]
    fn a_queue_that_stands_still_is_counted_and_goes_on() {
        let mut port = opened("net_ring_still0");
        up(&mut port);
        let mut sent = 0;
        // Nobody receives: first the ring becomes full, then the port.
        while send(&mut port, sent, 100) {
            sent += 1;
            port.flush().unwrap();
        }
        assert_eq!(port.transmit_room(), 0);
        until("the stall is counted", || {
            port.service().unwrap();
            port.dpdk_counters().tx_stalls == 1
        });
        assert!(port.counters().tx_full > 0);
        let mut came = 0;
        until("all came", || {
            port.service().unwrap();
            port.receive(64, &mut |frame| {
                check(frame, came, 100);
                came += 1;
            })
            .unwrap();
            came == sent
        });
        assert_eq!(port.counters().tx_drops.total(), 0);
    }

    #[test]
    fn a_link_that_was_taken_down_stays_so_until_it_is_brought_up() {
        let mut port = opened("net_ring_link0");
        up(&mut port);
        port.set_link(LinkState::Down).unwrap();
        assert_eq!(port.service().unwrap(), LinkState::Down, "at once");
        assert_eq!(port.last_disconnect(), Some("the box has taken it down"));
        assert!(send(&mut port, 0, 60), "taken and dropped");
        port.set_link(LinkState::Up).unwrap();
        echo(&mut port, &[60, 1514]);
        let counters = port.counters();
        assert_eq!((counters.link_ups, counters.tx_drops.get(DropReason::LinkDown)), (2, 1));
        let refused = opened("net_null44").set_link(LinkState::Down).unwrap_err().to_string();
        assert!(refused.contains("net_null44: net_null cannot"), "{refused}");
    }

    #[test]
    fn a_pool_without_buffers_is_counted_and_fills_again() {
        let mut port = opened("net_ring_empty0");
        up(&mut port);
        let mut hoard = Vec::new();
        loop {
            let mut frames = [RawFrame::NONE; BURST_MAX];
            // SAFETY: there is room for so many frames, and the pool is the port's.
            let done = unsafe { shim::lh_allocate(port.pool(), frames.as_mut_ptr(), 1) };
            if done < 0 {
                break;
            }
            hoard.push(frames[0]);
        }
        assert_eq!(port.transmit_room(), 0);
        assert!(!send(&mut port, 0, 60));
        assert!(port.dpdk_counters().tx_no_buffer > 0);
        // SAFETY: the buffers are this test's, and freed once.
        unsafe { shim::lh_free(hoard.as_ptr(), hoard.len() as u32) };
        echo(&mut port, &many_lengths(9238));
    }

    #[test]
    fn no_buffer_is_lost() {
        let mut port = opened("net_ring_all0");
        up(&mut port);
        let all = port.free_buffers();
        for _ in 0..3 {
            echo(&mut port, &many_lengths(9238));
            assert_eq!(port.free_buffers() + port.empty_buffers(), all);
        }
    }
}
