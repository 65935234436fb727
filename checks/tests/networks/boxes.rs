//! `longhaul accelerate` and `longhaul emulate` between hosts in network namespaces of this
//! machine, connected to the boxes by veth pairs. Skipped, loudly, if namespaces cannot be created.

use longhaul_checks::network::{LEFT, LIMIT, Network, RIGHT, RIGHT_6, Raw, RunningBox};
use longhaul_checks::{Program, longhaul, require};
use longhaul_units::Qpn;
use longhaul_wire::{Packet, Transport, pcap};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A broadcast frame with `header` behind the addresses, `len` bytes long.
fn frame(header: &[u8], len: usize, number: u16) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 7]);
    frame.extend_from_slice(header);
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend((frame.len()..len).map(|at| at as u8));
    frame
}

const LOOK_AGAIN: Duration = Duration::from_millis(10);
const VLAN_5: [u8; 6] = [0x81, 0x00, 0x60, 0x05, 0x88, 0xb5];
const VLAN_5_IN_6: [u8; 10] = [0x88, 0xa8, 0x00, 0x06, 0x81, 0x00, 0x60, 0x05, 0x88, 0xb5];
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
const LLDP: [u8; 2] = [0x88, 0xcc];

/// Checks that everything but RoCEv2 passes `network` unchanged and in order.
fn carries_everything(network: &Network, mtu: usize) {
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    for (from, to) in [(&left, &right), (&right, &left)] {
        let frames = [
            frame(&LLDP, 60, 1),
            frame(&EXPERIMENTAL, 14 + mtu, 2),
            frame(&VLAN_5, 18 + mtu, 3),
            frame(&VLAN_5_IN_6, 14 + mtu, 4),
            frame(&[0x01, 0x00], 60, 5),
        ];
        for sent in &frames {
            from.send(sent);
            let came = to.receive(|came| came.get(6..12) == sent.get(6..12));
            assert!(came == *sent, "{:x?} came as {:x?}", &sent[..24], &came[..24.min(came.len())]);
        }
        for number in 0..500 {
            let header: &[u8] = [&EXPERIMENTAL[..], &VLAN_5, &LLDP][usize::from(number % 3)];
            from.send(&frame(header, 60 + usize::from(number % 7) * 100, number));
            if number % 50 == 49 {
                for number in number - 49..=number {
                    let header: &[u8] =
                        [&EXPERIMENTAL[..], &VLAN_5, &LLDP][usize::from(number % 3)];
                    let wanted = frame(header, 60 + usize::from(number % 7) * 100, number);
                    let came = to.receive(|came| came.get(6..12) == wanted.get(6..12));
                    assert!(came == wanted, "frame {number} is not next");
                }
            }
        }
    }
}

/// Frames of a capture file.
fn recorded(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    pcap::records(&file).map(|record| record.expect("a record").data.to_vec()).collect()
}

mod a_fibre {
    use super::*;

    #[test]
    fn delays_everything_and_changes_nothing() {
        let Some(network) = Network::new("an emulated fibre between namespaces", 9000) else {
            return;
        };
        let capture = network.runtime.path().join("a.pcap");
        let fibre = network.start(&format!(
            "emulate --a west --b east --delay 5ms --pcap-a {} --pcap-frames 0",
            capture.display()
        ));
        for to in [RIGHT, RIGHT_6] {
            // All are late while the machine is busy.
            let mut rounds = (0..50).map(|_| network.round_trip(to, 64, 20));
            let is_right = |shortest: Duration| {
                assert!(shortest >= Duration::from_millis(10), "{to}: {shortest:?}");
                shortest < Duration::from_millis(15)
            };
            assert!(rounds.any(is_right), "{to}: 15 ms and more");
        }
        network.round_trip(RIGHT, 9000 - 28, 5);
        network.round_trip(RIGHT_6, 9000 - 48, 5);
        network.stream(32 << 20);
        carries_everything(&network, 9000);

        let status = network.status(&fibre);
        let pair = &status["pairs"][0];
        assert_eq!(
            (&pair["name"], &pair["fibre"]["delay_us"]),
            (&"west-east".into(), &5000.0.into())
        );
        for direction in 0..2 {
            let drops = pair["fibre"]["directions"][direction]["drops"].as_object().expect("drops");
            assert!(drops.values().all(|n| *n == 0), "{status:#}");
        }
        let split = pair["ports"][0]["other"]["rx_split"].as_u64();
        assert!(split > Some(0), "the hosts leave no segmentation to their interfaces: {status:#}");
        let text =
            Program::start(&mut network.runtime.longhaul("box status --prometheus")).succeed(LIMIT);
        let sample =
            "longhaul_box_port_up{box=\"emulate\",pair=\"west-east\",side=\"a\",port=\"west\"} 1\n";
        assert!(text.stdout.contains(sample), "{text}");

        let ended = fibre.end();
        assert!(ended.stdout.contains("fibre a to b: "), "{ended}");
        assert!(ended.stdout.contains("a west, up: in "), "{ended}");
        let frames = recorded(&capture);
        for source in [7, 7].map(|last| [2, 0, 0, 0, 0, last]) {
            assert!(
                frames.iter().filter(|frame| frame[6..12] == source).count() >= 1010,
                "both directions"
            );
        }
    }

    #[test]
    fn survives_cables_that_are_pulled_at_either_side_and_interfaces_that_are_set_down() {
        let Some(network) = Network::new("cables that are pulled", 1500) else { return };
        let fibre = network.start("emulate --a west --b east --distance 10km");
        network.round_trip(RIGHT, 64, 2);
        network.pull_cables(&fibre);
        let is_up =
            |status: &Value, side: usize| status["pairs"][0]["ports"][side]["link_is_up"] == true;
        network.middle.set("link del west");
        network.wait_for(&fibre, "down", |status| !is_up(status, 0));
        network.middle.set("link add west mtu 1500 type veth peer name left mtu 1500");
        network.middle.set("link set west addrgenmode none up");
        network.middle.set(&format!("link set left netns {}", network.left.name));
        network.left.set("link set left name eth0 up");
        network.left.set(&format!("address add {LEFT}/24 dev eth0"));
        network.wait_for(&fibre, "up", |status| is_up(status, 0));
        network.round_trip(RIGHT, 64, 2);
        let ended = fibre.end();
        for (line, count) in
            [("a port west went down", 3), ("b port east went down", 1), ("is up", 6)]
        {
            assert_eq!(ended.stderr.matches(line).count(), count, "{line}: {ended}");
        }
        let first = ended.stderr.lines().next().unwrap_or_default();
        assert!(first.starts_with("20") && first.contains("T") && first.contains("Z "), "{ended}");
    }

    #[test]
    fn tells_once_that_frames_do_not_fit_and_counts_them() {
        let Some(network) = Network::new("frames that do not fit", 9000) else { return };
        network.middle.set("link set east mtu 1500");
        let fibre = network.start("emulate --a west --b east");
        let left = Raw::open(&network.left, "eth0");
        for number in 0..3 {
            left.send(&frame(&EXPERIMENTAL, 9000, number));
        }
        network.wait_for(&fibre, "three drops", |status| {
            status["pairs"][0]["ports"][1]["tx_drops"]["frame_too_long"] == 3
        });
        network.round_trip(RIGHT, 64, 1);
        let ended = fibre.end();
        assert_eq!(ended.stderr.matches("frame_too_long").count(), 1, "{ended}");
        assert!(ended.stderr.contains("its MTU of 1500"), "{ended}");
        assert!(ended.stderr.contains("ip link set dev east mtu"), "{ended}");
    }

    #[test]
    fn can_be_joined_to_another_by_shared_memory() {
        let Some(network) = Network::new("boxes joined by shared memory", 9000) else { return };
        let socket = network.runtime.path().join("joint.sock");
        let port = format!("memif:{}", socket.display());
        let near =
            network.start(&format!("emulate --name near --a west --b {port},master --delay 1ms"));
        let far =
            network.start(&format!("emulate --name far --a {port},slave --b east --delay 2ms"));
        network.wait_for(&far, "attached", |status| {
            status["pairs"][0]["ports"][0]["link_is_up"] == true
        });
        let shortest = network.round_trip(RIGHT, 9000 - 28, 10);
        assert!(shortest >= Duration::from_millis(6), "{shortest:?}");
        carries_everything(&network, 9000);
        // A box that returns is attached again.
        near.end();
        network.wait_for(&far, "left alone", |status| {
            status["pairs"][0]["ports"][0]["link_is_up"] == false
        });
        let near =
            network.start(&format!("emulate --name near --a west --b {port},master --delay 1ms"));
        network.wait_for(&far, "attached", |status| {
            status["pairs"][0]["ports"][0]["link_is_up"] == true
        });
        network.round_trip(RIGHT, 64, 2);
        near.end();
        far.end();
    }

    #[test]
    fn several_pairs_run_side_by_side_and_a_file_says_what_they_are() {
        let Some(network) = Network::new("several pairs", 1500) else { return };
        let file = network.runtime.path().join("emulate.toml");
        let text = "name = 'two'\n[defaults]\nrate = '1G'\n[[pair]]\na = 'west'\nb = 'east'\n\
                    [[pair]]\nname = 'taps'\n\
                    a = 'tap:lhx'\nb = 'tap:lhy'\ndelay = '2ms'\n";
        fs::write(&file, text).expect("a file");
        let mut command = network
            .middle
            .longhaul(&network.runtime, &format!("emulate --config {}", file.display()));
        let fibres = RunningBox { program: Program::start(&mut command), name: "two".to_owned() };
        let deadline = Instant::now() + LIMIT;
        while network.try_status("two").is_none() {
            assert!(Instant::now() < deadline, "it does not start");
            thread::sleep(LOOK_AGAIN);
        }
        network.round_trip(RIGHT, 64, 2);
        for tap in ["lhx", "lhy"] {
            network.middle.set(&format!("link set {tap} addrgenmode none up"));
        }
        network.wait_for(&fibres, "TAPs that are up", |status| {
            (0..2).all(|side| status["pairs"][1]["ports"][side]["link_is_up"] == true)
        });
        let (one, other) = (Raw::open(&network.middle, "lhx"), Raw::open(&network.middle, "lhy"));
        let sent = frame(&EXPERIMENTAL, 100, 9);
        one.send(&sent);
        assert!(other.receive(|came| came.get(6..12) == sent.get(6..12)) == sent);
        let status = network.status(&fibres);
        assert_eq!(status["pairs"][1]["fibre"]["rate_bits_per_s"], 1_000_000_000);
        fibres.end();
    }
}

mod accelerators {
    use super::*;

    fn chain(network: &Network) -> [RunningBox; 3] {
        [
            network.start("accelerate --name near --lan west --wan w1 --rate 1G --distance 1000km"),
            network.start("emulate --a w2 --b e2 --distance 1000km --rate 1G"),
            network.start("accelerate --name far --lan east --wan e1 --rate 1G --distance 1000km"),
        ]
    }

    #[test]
    fn around_a_fibre_pass_on_what_is_not_theirs() {
        let Some(network) = Network::new("accelerators around a fibre", 9000) else { return };
        let boxes = chain(&network);
        for to in [RIGHT, RIGHT_6] {
            let shortest = network.round_trip(to, 64, 10);
            assert!(shortest >= Duration::from_millis(10), "{to}: {shortest:?}");
        }
        network.round_trip(RIGHT, 9000 - 28, 2);
        network.stream(16 << 20);
        carries_everything(&network, 9000);
        for one in boxes {
            one.end();
        }
    }

    #[test]
    fn around_a_fibre_accelerate_unmodified_programs_on_the_hosts() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("RoCEv2 through accelerators", 1500) else { return };
        let boxes = chain(&network);
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 400", || {});
        let near = network.status(&boxes[0]);
        let counters = &near["pairs"][0]["accelerator"]["counters"];
        // On a busy machine hosts respond late, and a flow may end up passing.
        let count = |name: &str| counters[name].as_u64().expect("a number");
        assert!(count("stored_packets") > 0 && count("pseudo_acks") > 0, "{near:#}");
        assert!(count("stored_packets") + count("passed") >= 400 * 64, "{near:#}");
        assert_eq!(counters["malformed"], 0, "{near:#}");
        assert_eq!(counters["rx_icrc_encapsulated"], 0, "{near:#}");
        for one in boxes {
            let ended = one.end();
            assert!(
                ended.stdout.contains("fibre") || ended.stdout.contains("pseudo-ACK"),
                "{ended}"
            );
        }
    }

    #[test]
    fn with_a_transport_and_keys_repair_what_the_path_loses() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("whole boxes with keys", 1500) else { return };
        let keys = keys(&network);
        let start = |own: usize, name: &str, ports: &str| {
            let ((file, _), (_, peer)) = (&keys[own], &keys[1 - own]);
            let rest = "--rate 1G --distance 100km --transport";
            let keys = format!("--key {} --peer other={peer}", file.display());
            network.start(&format!("accelerate --name {name} {ports} {rest} {keys}"))
        };
        let near = start(0, "near", "--lan west --wan w1");
        let fibre = network.start("emulate --a w2 --b e2 --distance 100km --rate 1G --loss 1e-2");
        let far = start(1, "far", "--lan east --wan e1");
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 400", || {});
        let state = network.status(&near);
        let transport = &state["pairs"][0]["transport"];
        assert_eq!(transport["sessions"][0]["is_open"], true, "{state:#}");
        assert!(transport["counters"]["tunnelled"].as_u64() > Some(10_000), "{state:#}");
        let repaired = &network.status(&far)["pairs"][0]["transport"]["counters"]["repaired"];
        let repeated = &transport["counters"]["repeated"];
        assert!(
            repaired.as_u64() > Some(0) || repeated.as_u64() > Some(0),
            "nothing was repaired: {state:#}"
        );
        let seal = &transport["seal"];
        assert!(seal["peers"][0]["cipher"].is_string(), "{state:#}");
        assert!(seal["counters"]["sealed"].as_u64() > Some(10_000), "{state:#}");
        for one in [near, fibre, far] {
            one.end();
        }
    }

    /// Threads that wait for a core are no failed path.
    #[test]
    #[ignore = "nightly: all cores are busy for ten seconds"]
    fn with_a_transport_take_no_path_for_out_while_all_cores_are_busy() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("whole boxes on busy cores", 1500) else { return };
        let start = |name: &str, ports: &str| {
            network.start(&format!(
                "accelerate --name {name} {ports} --rate 200M --distance 100km --transport"
            ))
        };
        let near = start("near", "--lan west --wan w1");
        let fibre = network.start("emulate --a w2 --b e2 --distance 100km --rate 200M");
        let far = start("far", "--lan east --wan e1");
        let (is_over, at_last) = (AtomicBool::new(false), Instant::now() + LIMIT);
        let spins = || !is_over.load(Ordering::Relaxed) && Instant::now() < at_last;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| while spins() {});
            }
            network.transfer("ib_write_bw -R -b -s 65536 -m 1024 -D 10", || {});
            is_over.store(true, Ordering::Relaxed);
        });
        for one in [near, far] {
            let state = network.status(&one);
            let transport = &state["pairs"][0]["transport"];
            let path = &transport["sessions"][0]["paths"][0];
            assert_eq!(
                (&path["outages"], &path["black_holes"]),
                (&0.into(), &0.into()),
                "{transport:#}"
            );
            println!("{} of {} lost", path["lost"], path["sent"]);
            one.end();
        }
        fibre.end();
    }

    #[test]
    fn with_a_transport_and_keys_repair_and_hide_uc_and_ud() {
        require("ib_send_bw", "perftest");
        let Some(network) = Network::new("UC and UD between whole boxes with keys", 1500) else {
            return;
        };
        let keys = keys(&network);
        let start = |own: usize, name: &str, ports: &str| {
            let ((file, _), (_, peer)) = (&keys[own], &keys[1 - own]);
            let rest = "--rate 1G --distance 100km --transport";
            let keys = format!("--key {} --peer other={peer}", file.display());
            network.start(&format!("accelerate --name {name} {ports} {rest} {keys}"))
        };
        let near = start(0, "near", "--lan west --wan w1");
        let crossed = network.runtime.path().join("crossed.pcap");
        let fibre = network.start(&format!(
            "emulate --a w2 --b e2 --distance 100km --rate 1G --loss 1e-2 --reorder 1e-2 \
             --keep-privileges --pcap-a {}",
            crossed.display()
        ));
        let far = start(1, "far", "--lan east --wan e1");
        // Frames pass until the boxes have met.
        network.transfer("ib_write_bw -s 4096 -m 1024 -n 100 -u 18", || {});
        // A receiver waits forever for a SEND that a box's port has no room for: there are few, and
        // all receives are posted from the beginning. Some WRITEs may be lost there.
        for line in [
            "ib_send_bw -c UD -s 1024 -m 1024 -n 200 -r 200",
            "ib_send_bw -c UC -s 2048 -m 1024 -n 100 -r 100",
            "ib_write_bw -c UC -s 65536 -m 1024 -n 400",
        ] {
            network.transfer(line, || {});
        }
        let counters = &network.status(&near)["pairs"][0]["transport"]["counters"];
        let of = |name: &str| counters[name].as_u64().unwrap_or_default();
        assert!(of("unpaced") > 200 + 2 * 100 + 1000, "{counters:#}");
        assert!(of("repeated") + of("parity_sent") > 10, "{counters:#}");
        let taken = of("tunnelled");
        network.wait_for(&far, "everything that was taken", |state| {
            state["pairs"][0]["transport"]["counters"]["delivered"].as_u64() >= Some(taken)
        });
        for one in [near, fibre, far] {
            one.end();
        }
        let opcodes = recorded(&crossed).into_iter().filter_map(|frame| {
            let packet = Packet::parse(&frame).ok().flatten()?;
            (packet.dest_qp() != Qpn::GSI).then(|| packet.opcode().transport())
        });
        let in_clear = opcodes.filter(|of| matches!(of, Transport::Uc | Transport::Ud)).count();
        assert_eq!(in_clear, 0, "frames of UC and UD in the clear");
    }

    /// Key files of two boxes, with their public keys.
    fn keys(network: &Network) -> [(PathBuf, String); 2] {
        ["near", "far"].map(|name| {
            let file = network.runtime.path().join(name);
            let made = Program::start(
                &mut network.runtime.longhaul(&format!("key new {}", file.display())),
            );
            (file, made.succeed(LIMIT).stdout.trim().to_owned())
        })
    }

    #[test]
    fn carry_in_parts_what_the_path_does_not_take() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("whole boxes over a path of 1500 bytes", 9000) else {
            return;
        };
        for interface in ["w1", "w2", "e1", "e2"] {
            network.middle.set(&format!("link set {interface} mtu 1500"));
        }
        let keys = keys(&network);
        let start = |own: usize, name: &str, ports: &str| {
            let ((file, _), (_, peer)) = (&keys[own], &keys[1 - own]);
            let rest = "--rate 1G --distance 100km --transport";
            network.start(&format!(
                "accelerate --name {name} {ports} {rest} --key {} --peer other={peer}",
                file.display()
            ))
        };
        let mut near = start(0, "near", "--lan west --wan w1");
        let fibre = network.start("emulate --a w2 --b e2 --distance 100km --rate 1G --loss 1e-3");
        let far = start(1, "far", "--lan east --wan e1");
        network.transfer("ib_write_bw -R -s 65536 -m 4096 -n 400", || {});
        network.wait_for(&near, "a settled MTU", |state| {
            let path = &state["pairs"][0]["transport"]["sessions"][0]["paths"][0];
            path["mtu_is_settled"] == true
        });
        let state = network.status(&near);
        let path = &state["pairs"][0]["transport"]["sessions"][0]["paths"][0];
        assert_eq!((&path["mtu"], &path["roce_mtu"]), (&1500.into(), &1024.into()));
        assert!(path["split"].as_u64() >= Some(400 * 16), "{state:#}");
        let assembled = &network.status(&far)["pairs"][0]["transport"]["counters"]["assembled"];
        assert!(assembled.as_u64() >= Some(400 * 16), "{assembled}");
        for line in [
            "RoCE packets of 4096 bytes, which the hosts on west may send, need ",
            "is open, by 1 path",
            "an RoCE MTU of 1024 on the hosts avoids that",
        ] {
            near.program.wait_for_output(line, LIMIT);
        }
        near.end();
        for one in [fibre, far] {
            one.end();
        }
    }

    #[test]
    fn carry_everything_over_a_circuit_between_two_stations() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a circuit between two stations", 9000) else { return };
        let [west, east] = ["02:00:00:00:01:01", "02:00:00:00:02:01"];
        network.middle.set(&format!("link set w1 address {west}"));
        network.middle.set(&format!("link set e1 address {east}"));
        let keys = keys(&network);
        let start = |own: usize, name: &str, ports: &str| {
            let ((file, _), (_, peer)) = (&keys[own], &keys[1 - own]);
            let rest = "--rate 1G --distance 100km --transport";
            network.start(&format!(
                "accelerate --name {name} {ports} {rest} --key {} --peer other={peer}",
                file.display()
            ))
        };
        let near = start(0, "near", &format!("--lan west --wan ethernet:w1,{east}@100"));
        let crossed = network.runtime.path().join("crossed.pcap");
        let fibre = network.start(&format!(
            "emulate --a w2 --b e2 --distance 100km --rate 1G --loss 1e-3 --keep-privileges \
             --pcap-a {}",
            crossed.display()
        ));
        let far = start(1, "far", &format!("--lan east --wan ethernet:e1,{west}@100"));
        network.round_trip(RIGHT, 1000, 2);
        network.transfer("ib_write_bw -R -s 65536 -m 4096 -n 400", || {});
        let state = network.status(&near);
        assert_eq!(state["pairs"][0]["transport"]["sessions"][0]["is_open"], true, "{state:#}");
        assert!(
            state["pairs"][0]["transport"]["seal"]["counters"]["sealed"].as_u64() > Some(5000),
            "{state:#}"
        );
        for one in [near, fibre, far] {
            one.end();
        }
        let frames = recorded(&crossed);
        assert!(frames.len() >= 1000);
        for frame in frames {
            assert_eq!(frame[12..18], [0x81, 0, 0, 100, 0x88, 0xb5], "{frame:02x?}");
        }
    }

    #[test]
    fn keep_what_they_have_stored_while_a_cable_of_the_long_path_is_pulled() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a cable of the long path that is pulled", 1500) else {
            return;
        };
        let boxes = chain(&network);
        // Eight seconds, so that it still runs while the cable is pulled.
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 15000", || {
            network.wait_for(&boxes[0], "packets in the store", |status| {
                let accelerator = &status["pairs"][0]["accelerator"];
                accelerator["stored_bytes"].as_u64() > Some(1 << 20)
            });
            network.middle.set("link set w2 down");
            network.wait_for(&boxes[0], "a port that is down", |status| {
                status["pairs"][0]["ports"][1]["link_is_up"] == false
            });
            thread::sleep(Duration::from_secs(1));
            network.middle.set("link set w2 up");
        });
        let near = network.status(&boxes[0]);
        let counters = &near["pairs"][0]["accelerator"]["counters"];
        assert_eq!(
            (&counters["flows_failed"], &counters["stored_lost"]),
            (&0.into(), &0.into()),
            "{near:#}"
        );
        let lost = near["pairs"][0]["ports"][1]["tx_drops"]["link_down"].as_u64();
        assert!(lost > Some(0), "nothing was sent while the cable was pulled: {near:#}");
        let [near, ..] = boxes;
        let ended = near.end();
        assert!(ended.stderr.contains("wan port w1 went down"), "{ended}");
    }
}

mod privileges {
    use super::*;

    fn of(process: u32) -> String {
        fs::read_to_string(format!("/proc/{process}/status")).expect("a process")
    }

    fn line<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).collect()
    }

    #[test]
    fn are_given_up_once_the_ports_are_open() {
        let Some(network) = Network::new("privileges of a box", 1500) else { return };
        let dropped = network.start("accelerate --lan west --wan east");
        let status = of(dropped.program.id());
        for caps in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(line(&status, caps), ["0000000000000000"], "{caps}");
        }
        assert_eq!(line(&status, "NoNewPrivs"), ["1"]);
        assert!(
            !line(&status, "Uid").contains(&"0") && !line(&status, "Gid").contains(&"0"),
            "{status}"
        );
        assert!(line(&status, "Groups").is_empty(), "{status}");
        assert_eq!(network.status(&dropped)["user"], "nobody");
        network.round_trip(RIGHT, 64, 1);
        let ended = dropped.end();
        assert!(ended.stderr.contains("runs as nobody without privileges"), "{ended}");

        let kept = network.start("accelerate --lan west --wan east --keep-privileges");
        assert_eq!(line(&of(kept.program.id()), "Uid"), ["0"; 4]);
        assert_eq!(network.status(&kept)["user"], "root");
        kept.signal(libc::SIGUSR1);
        network.round_trip(RIGHT, 64, 1);
        let ended = kept.end();
        assert!(
            ended.stderr.contains("Z accelerate 'accelerate', up "),
            "SIGUSR1 prints the status: {ended}"
        );
    }

    /// A copy of the program, and a directory for a control socket, accessible to everybody.
    fn for_anybody(network: &Network) -> (PathBuf, PathBuf) {
        let program = network.runtime.path().join("longhaul");
        // By a process: children of other tests' threads would inherit a file that is open for
        // writing, which nobody may execute.
        let mut copy = Command::new("cp");
        Program::start(copy.arg(longhaul()).arg(&program)).succeed(LIMIT);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(network.runtime.path(), mode).expect("mode 0777");
        (program, network.runtime.path().join("control"))
    }

    #[test]
    fn that_a_service_manager_grants_are_given_up_too() {
        require("setpriv", "util-linux");
        let Some(network) = Network::new("a box with granted privileges", 1500) else { return };
        let (program, _) = for_anybody(&network);
        // In the service's directory, by the box's name.
        let control = network.runtime.path().join("emulate/control");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--inh-caps=+net_raw,+net_admin", "--ambient-caps=+net_raw,+net_admin"]);
        command.arg(&program).args(["emulate", "--a", "west", "--b", "east"]);
        command.env("RUNTIME_DIRECTORY", network.runtime.path());
        let mut started = network.middle.inside(|| Program::start(&mut command));
        let deadline = Instant::now() + LIMIT;
        let ask = format!("box status --json --control {}", control.display());
        let status = loop {
            let done = Program::start(&mut network.runtime.longhaul(&ask)).finish(LIMIT);
            if done.status.success() {
                break done.stdout;
            }
            assert!(started.is_running() && Instant::now() < deadline, "{}", started.finish(LIMIT));
        };
        assert!(status.contains("\"user\": \"nobody\""), "{status}");
        let process = of(started.id());
        for caps in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(line(&process, caps), ["0000000000000000"], "{caps}");
        }
        network.round_trip(RIGHT, 64, 1);
        RunningBox { program: started, name: "emulate".to_owned() }.end();
        assert!(!control.exists(), "the socket stays behind");
    }

    #[test]
    fn that_are_missing_are_named() {
        let Some(network) = Network::new("a box without privileges", 1500) else { return };
        let (program, control) = for_anybody(&network);
        let mut command = Command::new(&program);
        command.args(["accelerate", "--lan", "west", "--wan", "east", "--control"]).arg(control);
        command.uid(65534).gid(65534);
        // A child runs in the namespace of the thread that starts it.
        let started = network.middle.inside(|| Program::start(&mut command));
        let done = started.finish(LIMIT);
        assert_eq!(done.status.code(), Some(1), "{done}");
        assert!(done.stderr.contains("CAP_NET_RAW") && done.stderr.lines().count() == 1, "{done}");
    }
}

mod bad_arguments {
    use super::*;

    #[test]
    fn are_answered_with_cause_and_cure_on_one_line() {
        let Some(network) = Network::new("bad arguments", 1500) else { return };
        for (arguments, code, part) in [
            ("accelerate", 2, "no ports; name two"),
            ("accelerate --lan west", 2, "they go in pairs"),
            ("accelerate --lan west --wan west", 2, "port west is named twice"),
            ("accelerate --lan west --wan tap:west", 2, "is named twice"),
            ("accelerate --lan west --wan nowhere", 1, "no interface nowhere here; there are: "),
            ("accelerate --lan west --wan udp:1", 2, "not a port: write eth1"),
            (
                "accelerate --lan west --wan east --user no-such-user",
                1,
                "there is no user 'no-such-user'; create it",
            ),
            ("accelerate --lan west --wan east --memory 1K", 2, "memory goes from"),
            (
                "accelerate --lan west --wan east --config /nowhere.toml",
                2,
                "cannot read /nowhere.toml",
            ),
            (
                "accelerate --lan west --wan east --pcap-lan /nowhere/x",
                1,
                "cannot record to /nowhere/x",
            ),
            (
                "emulate --a west --b east --distance 5000km --rate 100G --memory 1G",
                2,
                "lossless up to",
            ),
            ("emulate --a west --b east --distance 1km --delay 1ms", 2, "cannot be used with"),
            ("emulate --a west --b east --delay 5", 2, "not a time"),
            ("emulate --a west --b east --ecn 4M:1M", 2, "is above Kmax"),
            (
                "box status nobody-there",
                1,
                "no box called 'nobody-there' is running here; start one",
            ),
        ] {
            let done = Program::start(&mut network.middle.longhaul(&network.runtime, arguments))
                .finish(LIMIT);
            assert_eq!(done.status.code(), Some(code), "{done}");
            assert!(done.stderr.contains(part), "{part}: {done}");
            assert_eq!(done.stderr.lines().count(), 1, "{done}");
        }
        let first = network.start("emulate --a west --b east");
        let second =
            Program::start(&mut network.middle.longhaul(&network.runtime, "emulate --a w1 --b w2"));
        let refused = second.finish(LIMIT);
        assert!(
            refused.stderr.contains("a box named 'emulate' is already running; stop it"),
            "{refused}"
        );
        let same_port = "emulate --name other --a w1 --b west";
        let refused = Program::start(&mut network.middle.longhaul(&network.runtime, same_port));
        let refused = refused.finish(LIMIT);
        assert!(
            refused.stderr.contains("cannot open port west: box 'emulate' (PID ")
                && refused.stderr.contains("stop that box"),
            "{refused}"
        );
        first.end();
    }
}
