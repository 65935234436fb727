//! Boxes whose ports are shared by several cores, between hosts in network namespaces of this
//! machine. Skipped, loudly, if namespaces cannot be created or there is one processor.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::network::{
    LEFT, LIMIT, Network, RIGHT, RIGHT_6, Raw, RunningBox, Transfer, has_af_xdp,
};
use longhaul_checks::{Program, RuntimeDir, require};
use longhaul_wire::{pair_hash, pcap};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A second address of the left host, whose pair with the right host maps to the other core.
const LEFT_TOO: &str = "10.99.0.11";

fn network(what: &str, mtu: u32) -> Option<Network> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        skip_loudly(what, &"there is one processor");
        return None;
    }
    let network = Network::new(what, mtu)?;
    network.left.set(&format!("address add {LEFT_TOO}/24 dev eth0"));
    Some(network)
}

/// The core, of two, of the pair of an address and the right host.
fn core_of(address: &str) -> u32 {
    let octets = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
    let start = [&[2; 12], &[0x08, 0x00][..], &[0x45; 12]].concat();
    pair_hash(&[&start[..], &octets(address), &octets(RIGHT)].concat()) % 2
}

fn of_cores(status: &Value, counter: &str) -> Vec<u64> {
    let cores = status["pairs"][0]["cores"].as_array().expect("cores");
    cores.iter().map(|core| core[counter].as_u64().expect("a number")).collect()
}

/// RoCEv2 from both addresses of the left host: 400 messages of 64 KiB each.
fn transfers(network: &Network, mtu: u32) {
    // An ACK timeout of a second: four threads of boxes and two programs share the processors.
    from_both(network, &format!("ib_write_bw -s 65536 -m {mtu} -n 400 -u 18"));
}

fn from_both(network: &Network, program: &str) {
    for from in [LEFT, LEFT_TOO] {
        let Transfer { client, server } = network.begin_from(from, program);
        client.succeed(LIMIT);
        server.succeed(LIMIT);
    }
}

/// 400 messages of 64 KiB from each of two addresses, each on its own core.
fn are_accelerated_on_both_cores(network: &Network, one: &RunningBox, mtu: u64) {
    let status = network.status(one);
    let flows = status["pairs"][0]["accelerator"]["flows"].as_array().expect("flows");
    for from in [LEFT, LEFT_TOO] {
        let flow = flows.iter().find(|flow| flow["requester"] == from);
        // How many depends on the machine: packets pass while the responder of a flow seems silent.
        for counter in ["stored_packets", "pseudo_acks"] {
            let count = flow.and_then(|flow| flow[counter].as_u64());
            assert!(count > Some(0), "{from}: {counter}: {status:#}");
        }
    }
    // The status is as old as the threads' last update.
    network.wait_for(one, "frames of every port on a core", |status| {
        let [received, taken, given] =
            ["received_frames", "taken_over", "handed_over"].map(|name| of_cores(status, name));
        let each = |core: usize| received[core] + taken[core] > given[core] + 400 * 65536 / mtu;
        // The ports received as much as the cores processed, whatever other frames arrived
        // meanwhile.
        let ports = status["pairs"][0]["ports"].as_array().expect("ports");
        let of_ports: u64 = ports.iter().filter_map(|port| port["rx_frames"].as_u64()).sum();
        (0..2).all(each) && of_ports == received.iter().sum::<u64>()
    });
}

/// Sends all kinds of frames through an accelerator on two cores. Returns its status.
fn carries_everything(network: &Network, near: &RunningBox) -> Value {
    for to in [RIGHT, RIGHT_6] {
        network.round_trip(to, 1472 - 20, 20);
    }
    network.stream(16 << 20);
    transfers(network, 1024);
    are_accelerated_on_both_cores(network, near, 1024);
    network.status(near)
}

#[test]
fn share_the_flows_of_an_accelerator() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("an accelerator on two cores", 1500) else { return };
    assert_ne!(core_of(LEFT), core_of(LEFT_TOO), "choose other addresses");
    // Programs end when responders have everything: remaining packets must not prevent draining.
    let command =
        "accelerate --name near --lan west --wan east --cores 0-1 --memory 512M --mode tail";
    let near = network.start(command);
    let status = carries_everything(&network, &near);
    // The kernel delivers each frame to its core.
    assert_eq!(of_cores(&status, "handed_over"), [0, 0], "{status:#}");
    assert_eq!(of_cores(&status, "ring_full"), [0, 0], "{status:#}");
    assert_eq!(status["pairs"][0]["accelerator"]["stored_bytes_max"], 512 << 20, "{status:#}");
    let processors: Vec<&str> = status["pairs"][0]["cores"]
        .as_array()
        .expect("cores")
        .iter()
        .filter_map(|core| core["processors"].as_str())
        .collect();
    assert_eq!(processors, ["0", "1"]);
    let mut asked = network.middle.longhaul(&network.runtime, "box status near --prometheus");
    let metrics = Program::start(&mut asked).succeed(LIMIT).stdout;
    for core in 0..2 {
        let sample = format!(
            "longhaul_box_core_received_frames_total\
             {{box=\"near\",pair=\"west-east\",core=\"{core}\"}}"
        );
        assert!(metrics.contains(&sample), "{metrics}");
    }
    let mut drain =
        network.middle.longhaul(&network.runtime, "accelerate drain near --timeout 60s");
    let drained = Program::start(&mut drain).succeed(LIMIT);
    assert_eq!(drained.stdout, "drained: the stores are empty\n", "{drained}");
    let ended = near.end();
    assert!(ended.stderr.contains("2 cores, each serving its share"), "{ended}");
    assert!(ended.stderr.matches("lan port west is up").count() == 1, "{ended}");
    assert!(ended.stdout.contains("core 1 on processor 1: "), "{ended}");
}

/// Behind a circuit all frames are between the same two stations, so all arrive in one queue.
#[test]
fn hand_over_what_comes_by_the_wrong_queue() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("boxes on two cores that hand frames over", 1500) else { return };
    let mac = |interface: &str| {
        let read = || Command::new("ip").args(["-o", "link", "show", interface]).output();
        let shown = network.middle.inside(read).expect("ip").stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        shown
            .split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .expect("an address")
            .to_owned()
    };
    // Room for the circuit's headers around the hosts' frames.
    for interface in ["w1", "w2"] {
        network.middle.set(&format!("link set {interface} mtu 1600"));
    }
    let near =
        format!("accelerate --name near --lan west --wan ethernet:w1,{} --cores 2", mac("w2"));
    let far = format!("accelerate --name far --lan east --wan ethernet:w2,{} --cores 2", mac("w1"));
    let boxes = [network.start(&near), network.start(&far)];
    network.round_trip(RIGHT, 1472 - 20, 20);
    network.round_trip(RIGHT_6, 1400, 20);
    network.stream(16 << 20);
    transfers(&network, 1024);
    for one in &boxes {
        let status = network.status(one);
        let (given, taken) = (of_cores(&status, "handed_over"), of_cores(&status, "taken_over"));
        assert!(given.iter().sum::<u64>() > 100, "{status:#}");
        // Few frames are in flight between the cores.
        assert!(taken.iter().sum::<u64>() + 100 > given.iter().sum::<u64>(), "{status:#}");
        let counters = &status["pairs"][0]["accelerator"]["counters"];
        assert!(counters["flows_failed"] == 0, "{status:#}");
    }
    let status = network.status(&boxes[0]);
    assert!(
        status["pairs"][0]["accelerator"]["counters"]["pseudo_acks"].as_u64() > Some(0),
        "{status:#}"
    );
    for one in boxes {
        one.end();
    }
}

/// Sets the number of queues of the interfaces, if AF_XDP sockets are available.
fn with_queues(what: &str, queues: u32) -> Option<Network> {
    let network = has_af_xdp(what).then(|| network(what, 1500)).flatten()?;
    let Network { left, middle, right, .. } = &network;
    for (namespace, interface) in
        [(left, "eth0"), (middle, "west"), (middle, "east"), (right, "eth0")]
    {
        let set = format!("-L {interface} rx {queues} tx {queues}");
        let set = || Command::new("ethtool").args(set.split(' ')).output();
        let done = namespace
            .inside(set)
            .unwrap_or_else(|e| panic!("ethtool: {e}: apt-get install ethtool"));
        assert!(done.status.success(), "{done:?}");
    }
    Some(network)
}

/// The queue of a frame depends on the hosts' kernels, not on the frame's core.
#[test]
fn share_the_queues_of_xdp_ports() {
    require("ib_write_bw", "perftest");
    let Some(network) = with_queues("an accelerator on two cores over AF_XDP ports", 2) else {
        return;
    };
    let near = network
        .start("accelerate --name near --lan xdp:west --wan xdp:east --cores 2 --memory 512M");
    assert!(network.has_xdp_program("west") && network.has_xdp_program("east"));
    let status = carries_everything(&network, &near);
    let given: u64 = of_cores(&status, "handed_over").iter().sum();
    let taken: u64 = of_cores(&status, "taken_over").iter().sum();
    // How many come to the other core's queue depends on the kernel's hash of their flows. Few
    // frames are in flight between the cores.
    assert!(given > 0 && taken + 100 > given, "{status:#}");
    for port in status["pairs"][0]["ports"].as_array().expect("ports") {
        assert!(
            port["manner"].as_str().is_some_and(|manner| manner.contains("2 queues")),
            "{status:#}"
        );
    }
    // Frames taken by a core's socket while the link changes are its own.
    network.pull_cables(&near);
    near.end();
    assert!(!network.has_xdp_program("west") && !network.has_xdp_program("east"));
}

#[test]
fn have_a_direction_of_a_fibre_each() {
    let Some(network) = network("a fibre on two cores", 1500) else { return };
    carry_a_direction_each(
        &network,
        "emulate --a west --b east --delay 5ms --cores 2",
        |status, came, entered| {
            of_cores(status, "received_frames") == came
                && of_cores(status, "handed_over") == [0, 0]
                && entered == came
        },
    );
}

/// Frames from the other core's queue are handed over in order.
#[test]
fn have_a_direction_of_a_fibre_each_over_xdp_ports() {
    let Some(network) = with_queues("a fibre on two cores over AF_XDP ports", 2) else { return };
    carry_a_direction_each(
        &network,
        "emulate --a xdp:west --b xdp:east --delay 5ms --cores 2",
        |status, came, entered| {
            let sum = |all: &[u64]| all.iter().sum::<u64>();
            let of_all = |name| sum(&of_cores(status, name));
            // Late frames are counted, and no others are missing.
            of_all("received_frames") == sum(came)
                && of_all("handed_over") > 0
                && sum(entered) + of_all("ring_full") == sum(came)
        },
    );
    assert!(!network.has_xdp_program("west") && !network.has_xdp_program("east"));
}

fn carry_a_direction_each(
    network: &Network,
    command: &str,
    is_shared: impl Fn(&Value, &[u64], &[u64]) -> bool,
) {
    let fibre = network.start(command);
    for to in [RIGHT, RIGHT_6] {
        let shortest = network.round_trip(to, 64, 10);
        assert!(shortest >= Duration::from_millis(10), "{to}: {shortest:?}");
    }
    network.stream(16 << 20);
    // In order, in both directions, for all kinds of frames and addresses.
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    for (from, to) in [(&left, &right), (&right, &left)] {
        let frame = |number: u8| {
            [&[0xff; 6], &[2, 0, 0, 0, 0, number][..], &[0x88, 0xb5], &[number; 50]].concat()
        };
        for number in 0..100 {
            from.send(&frame(number));
        }
        for number in 0..100 {
            let came = to.receive(|came| came.get(12..14) == Some(&[0x88, 0xb5]));
            assert_eq!(came, frame(number));
        }
    }
    // The status is as old as the threads' last update.
    network.wait_for(&fibre, "a direction for each core", |status| {
        let ports = status["pairs"][0]["ports"].as_array().expect("ports");
        let came: Vec<u64> = ports.iter().filter_map(|port| port["rx_frames"].as_u64()).collect();
        let directions = status["pairs"][0]["fibre"]["directions"].as_array().expect("directions");
        let entered =
            directions.iter().filter_map(|direction| direction["entered_frames"].as_u64());
        let entered: Vec<u64> = entered.collect();
        came.iter().all(|frames| *frames > 200) && is_shared(status, &came, &entered)
    });
    fibre.end();
}

/// A recording contains the frames of all cores, in the order of their timestamps.
#[test]
fn record_a_port_into_one_file() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("a recording of a port that two cores share", 1500) else { return };
    let file = std::env::temp_dir().join(format!("longhaul-cores-{}.pcap", std::process::id()));
    let command = format!(
        "accelerate --name near --lan west --wan east --cores 2 --pcap-lan {} --pcap-frames 0 \
         --keep-privileges",
        file.display()
    );
    let near = network.start(&command);
    from_both(&network, "ib_write_bw -s 65536 -m 1024 -n 20 -u 18");
    let handled = network.status(&near)["pairs"][0]["ports"][0].clone();
    near.end();
    let recorded = std::fs::read(&file).expect("a recording");
    std::fs::remove_file(&file).expect("removed");
    let records: Vec<_> = pcap::records(&recorded).collect::<Result<_, _>>().expect("records");
    for from in [LEFT, LEFT_TOO] {
        let source = from.parse::<Ipv4Addr>().expect("an address").octets();
        let sent = records.iter().filter(|record| {
            record.data.get(26..30) == Some(&source)
                && record.data.get(36..38) == Some(&4791_u16.to_be_bytes())
        });
        let core = core_of(from);
        assert!(sent.count() >= 20 * 64, "{from}, of core {core}");
    }
    let number = |name: &str| handled[name].as_u64().expect("a number") as usize;
    assert!(
        records.len() >= number("rx_frames") + number("tx_frames"),
        "{} of {handled:#}",
        records.len()
    );
    assert!(records.is_sorted_by_key(|record| record.timestamp_ns));
}

/// Two whole boxes on two cores each around a fibre, with `keys` at both ends.
fn tunnel_by_a_session_of_each_core(what: &str, keys: [String; 2]) {
    require("ib_write_bw", "perftest");
    let Some(network) = network(what, 1500) else { return };
    let rest = "--rate 1G --distance 100km --transport --cores 2 --memory 512M";
    let [near_key, far_key] = keys;
    let boxes = [
        network.start(&format!("accelerate --name near --lan west --wan w1 {rest} {near_key}")),
        network.start(&format!("accelerate --name far --lan east --wan e1 {rest} {far_key}")),
    ];
    let fibre = network.start("emulate --a w2 --b e2 --distance 100km --rate 2G --loss 1e-3");
    transfers(&network, 1024);
    network.round_trip(RIGHT, 1000, 5);
    for one in &boxes {
        let status = network.status(one);
        let transport = &status["pairs"][0]["transport"];
        let sessions = transport["sessions"].as_array().expect("sessions");
        assert_eq!(sessions.len(), 2, "{status:#}");
        let sent = |session: &Value| session["paths"][0]["sent"].as_u64();
        // ACKs in one direction, 400 messages of 64 packets in the other.
        assert!(
            sessions.iter().all(|session| session["is_open"] == true && sent(session) > Some(100)),
            "{status:#}"
        );
        assert_ne!(sessions[0]["far_box"], sessions[1]["far_box"], "{status:#}");
        assert_eq!(
            (&transport["refused"], &transport["counters"]["lost_with_session"]),
            (&Value::Null, &0.into())
        );
        if transport["seal"].is_object() {
            // One handshake per core.
            assert_eq!(transport["seal"]["peers"][0]["handshakes"], 2, "{status:#}");
        }
        assert_eq!(of_cores(&status, "handed_over"), [0, 0], "{status:#}");
        // Each is paced to its share of the path.
        for session in sessions {
            assert_eq!(session["paths"][0]["rate_bps"], 500_000_000, "{status:#}");
        }
    }
    let near = network.status(&boxes[0]);
    let counters = &near["pairs"][0]["transport"]["counters"];
    assert!(counters["tunnelled"].as_u64() > Some(2 * 200 * 64), "{near:#}");
    are_accelerated_on_both_cores(&network, &boxes[0], 1024);
    for one in boxes {
        one.end();
    }
    fibre.end();
}

#[test]
fn have_a_session_of_a_transport_each() {
    tunnel_by_a_session_of_each_core("transports on two cores", [String::new(), String::new()]);
}

#[test]
fn have_keys_of_a_seal_each() {
    let folder = RuntimeDir::new();
    let made = ["near", "far"].map(|name| {
        let file = folder.path().join(format!("{name}.key"));
        let made = Program::start(&mut folder.longhaul(&format!("key new {}", file.display())));
        (file, made.succeed(LIMIT).stdout.trim().to_owned())
    });
    let [(near, of_near), (far, of_far)] = made;
    let keys = [
        format!("--key {} --peer far={of_far}", near.display()),
        format!("--key {} --peer near={of_near}", far.display()),
    ];
    tunnel_by_a_session_of_each_core("sealed transports on two cores", keys);
}

#[test]
fn are_told_of_a_far_box_that_has_others() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("transports on two cores and on one", 1500) else { return };
    let rest = "--rate 1G --distance 10km --transport --memory 512M";
    let boxes = [
        network.start(&format!("accelerate --name near --lan west --wan w1 {rest} --cores 2")),
        network.start(&format!("accelerate --name far --lan east --wan e1 {rest}")),
    ];
    let fibre = network.start("emulate --a w2 --b e2 --distance 10km --rate 2G");
    // Losses are not repaired, so little is sent.
    from_both(&network, "ib_write_bw -s 4096 -m 1024 -n 50 -u 18");
    for (one, [its, own]) in boxes.iter().zip([[1, 2], [2, 1]]) {
        let told = format!("it has {its} cores, and this one {own}: give both the same --cores");
        network.wait_for(one, "a refusal", |status| {
            status["pairs"][0]["transport"]["refused"]
                .as_str()
                .is_some_and(|why| why.contains(&told))
        });
    }
    for one in boxes {
        let ended = one.end();
        assert!(ended.stderr.contains("give both the same --cores"), "{ended}");
        assert!(ended.stdout.contains("transport: 0 frames tunnelled"), "{ended}");
    }
    fibre.end();
}

#[test]
fn that_cannot_be_had_are_refused_before_a_port_is_opened() {
    let Some(network) = network("cores that cannot be had", 1500) else { return };
    let accelerate = "accelerate --lan west --wan east";
    for (arguments, parts) in [
        (format!("{accelerate} --cores 0"), ["0 cores", "1 to 32"]),
        (
            format!("{accelerate} --cores 30"),
            ["30 cores are more than the processors", "may use, 0-"],
        ),
        (format!("{accelerate} --cores 0,900"), ["processor 900 is not there", "may use 0-"]),
        (format!("{accelerate} --cores 1,1"), ["processor 1 is named twice", "--cores"]),
        (format!("{accelerate} --cores 2 --numa 77"), ["no NUMA node 77", "lscpu"]),
        (format!("{accelerate} --cores 0-1 --numa 0"), ["--numa with --cores 0-1", "--cores 2"]),
        (
            format!("{accelerate} --cores 2 --transport --far 10.2.0.0/16=10.2.0.1"),
            ["--far 10.2.0.0/16=10.2.0.1 with --cores 2", "use --far 10.2.0.0/16 alone"],
        ),
        (format!("{accelerate} --cores 2 --flows 1"), ["flows_max is 0", "fewer cores"]),
        ("accelerate --lan tap:lhq --wan east --cores 2".into(), ["port tap:lhq", "one queue"]),
        (
            "accelerate --lan memif:/tmp/x --wan east --cores 2".into(),
            ["port memif:/tmp/x", "one queue"],
        ),
        (
            "accelerate --lan xdp:west --wan east --cores 2".into(),
            ["west has 1 queue for 2 cores", "ethtool -L west combined 2"],
        ),
        (
            "emulate --a west --b east --cores 3".into(),
            ["3 cores for the two directions", "--cores 2"],
        ),
    ] {
        let mut command = network.middle.longhaul(&network.runtime, &arguments);
        let done = Program::start(&mut command).finish(LIMIT);
        assert!(!done.status.success(), "{arguments}: {done}");
        assert!(parts.iter().all(|part| done.stderr.contains(part)), "{arguments}: {done}");
        assert_eq!(done.stderr.matches("longhaul: ").count(), 1, "{arguments}: {done}");
    }
}
