//! Flows of a scenario file.

use super::fields::Fields;
use super::network::Network;
use super::schema::{FLOW, suggest};
use super::tree::Node;
use super::{FileError, twice};
use crate::host::{Migration, Op, Storage, Writes};
use crate::scenario::{Connect, Events, Flow, StationKind, Test, Transport, Until};
use crate::simulation::unsupported;
use longhaul_rnic::Mtu;
use longhaul_units::Duration;

/// Default message size in bytes: perftest's.
const SIZE: u64 = 65_536;
/// Maximum QPs of all flows: each needs memory at both hosts.
const QPS_MAX: u64 = 1 << 20;
/// Default in-capsule data of NVMe over Fabrics in bytes: SPDK's.
const IN_CAPSULE: u32 = 4096;
/// Keys of a storage target.
const STORAGE: [&str; 5] =
    ["in_capsule", "target_cores", "command_time", "drive_rate", "drive_latency"];
/// Keys of a migration.
const MIGRATION: [&str; 10] = [
    "setup",
    "disk",
    "disk_rate",
    "memory",
    "memory_rate",
    "working_set",
    "dirty_rate",
    "dirty_pause",
    "downtime_limit",
    "timeout",
];
/// Default message size of a migration in bytes: a chunk of QEMU's.
const CHUNK: u64 = 1 << 20;
/// Default memory of a guest in bytes.
const MEMORY: u64 = 1 << 30;
/// Default downtime limit: QEMU's.
const DOWNTIME_LIMIT: Duration = Duration::from_ms(300);
/// Default time after which a migration is cancelled.
const TIMEOUT: Duration = Duration::from_ms(120_000);
/// Default number of messages per QP.
const ITERATIONS: u64 = 1000;

/// Reads all flows of a file.
pub(super) fn read(nodes: &[Node], network: &Network<'_>) -> Result<Vec<Flow>, FileError> {
    let mut flows = Vec::new();
    let mut places = Vec::new();
    for (number, node) in (1..).zip(nodes) {
        let fields = Fields::of(node, "[[flow]]", FLOW)?;
        let flow = one(&fields, number, network)?;
        match fields.whole("count") {
            None => {
                places.push(fields.place_of("name").clone());
                flows.push(flow);
            }
            Some(count) => {
                for copy in 1..=count {
                    places.push(fields.place_of("name").clone());
                    flows.push(Flow { name: format!("{}-{copy}", flow.name), ..flow.clone() });
                }
            }
        }
    }
    let qps: u64 = flows.iter().map(|flow| u64::from(flow.qps)).sum();
    if let (true, Some(node)) = (qps > QPS_MAX, nodes.first()) {
        let cause = format!("{qps} QPs in all: {QPS_MAX} are the most; lower 'qps' or 'count'");
        return Err(node.place.error(cause));
    }
    let names: Vec<&str> = flows.iter().map(|flow| &*flow.name).collect();
    if let Some(at) = twice(&names) {
        return Err(
            places[at].error(format!("two flows are called '{}': give each its name", names[at]))
        );
    }
    Ok(flows)
}

fn one(fields: &Fields<'_>, number: usize, network: &Network<'_>) -> Result<Flow, FileError> {
    let ends = [end(fields, network, "from")?, end(fields, network, "to")?];
    let names = ends.map(|station| network.name(station).to_owned());
    if ends[0] == ends[1] {
        let key = if fields.has("to") { "to" } else { "from" };
        let cause = format!("a flow from '{}' to itself: name another host", names[0]);
        return Err(fields.error(key, cause));
    }
    if !network.is_joined(ends[0], ends[1]) {
        let [from, to] = names;
        let cause = format!("no links lead from '{from}' to '{to}': add a [[link]] between them");
        return Err(fields.error("from", cause));
    }
    let op = match fields.text("op") {
        Some("send") => Op::Send,
        Some("write_imm") => Op::WriteImmediate,
        Some("read") => Op::Read,
        Some("atomic") => Op::Atomic,
        _ => Op::Write,
    };
    let size = match (fields.whole("size"), op) {
        (None, Op::Atomic) => 8,
        (Some(size), Op::Atomic) if size != 8 => {
            return Err(fields.error(
                "size",
                format_args!("an atomic works on 8 bytes, not {size}: leave size out"),
            ));
        }
        (None, _) if fields.text("test") == Some("migration") => CHUNK,
        (size, _) => size.unwrap_or(SIZE),
    };
    let flow = Flow {
        name: fields.text("name").map_or_else(|| format!("flow{number}"), str::to_owned),
        from: ends[0],
        to: ends[1],
        op,
        message_bytes: u32::try_from(size).unwrap_or(u32::MAX),
        transport: match fields.text("transport") {
            Some("uc") => Transport::Uc,
            _ => Transport::Rc,
        },
        dscp: fields.whole("dscp").map_or(Flow::ROCE_DSCP, |dscp| dscp as u8),
        events: match fields.text("events") {
            Some("all") => Events::All,
            Some("solicited") => Events::Solicited,
            _ => Events::Off,
        },
        qps: fields.number("qps").unwrap_or(1),
        mtu: mtu(fields)?,
        test: test(fields, op)?,
        starts_at: fields.time("start").unwrap_or(Duration::ZERO),
        connect: connect(fields)?,
    };
    let shares = match network.kind(flow.to) {
        StationKind::Host(profile) => profile.srq_depth > 0,
        _ => false,
    };
    match unsupported(&flow, shares) {
        Some(why) => Err(fields.place.error(why)),
        None => Ok(flow),
    }
}

fn connect(fields: &Fields<'_>) -> Result<Connect, FileError> {
    match (fields.text("connect"), fields.flag("listen")) {
        (Some("cm"), listens) => {
            Ok(Connect::ConnectionManager { listens: listens.unwrap_or(true) })
        }
        (_, None) => Ok(Connect::OutOfBand),
        (_, Some(_)) => {
            let cause = "only connections by the connection manager need who listens: add connect \
                         = \"cm\", or take 'listen' out";
            Err(fields.error("listen", cause))
        }
    }
}

/// Returns the host that `key` names; with two hosts, `from` defaults to the first and `to` to the
/// second.
fn end(fields: &Fields<'_>, network: &Network<'_>, key: &str) -> Result<usize, FileError> {
    let hosts: Vec<usize> = network.hosts().collect();
    let names = || hosts.iter().map(|host| network.name(*host));
    let Some(name) = fields.text(key) else {
        return match hosts[..] {
            [first, second] => Ok(if key == "from" { first } else { second }),
            _ => {
                let all = names().collect::<Vec<_>>().join(", ");
                Err(fields.error(
                    key,
                    format_args!("this flow has no '{key}': name one of the hosts {all}"),
                ))
            }
        };
    };
    let station = network.find(name).ok_or_else(|| {
        let known = suggest(name, names(), "none of the hosts");
        fields.error(key, format_args!("{key} = \"{name}\" is {known}"))
    })?;
    match network.kind(station) {
        StationKind::Host(_) => Ok(station),
        _ => {
            let all = names().collect::<Vec<_>>().join(", ");
            Err(fields
                .error(key, format_args!("'{name}' is no host: a flow goes between two of {all}")))
        }
    }
}

fn mtu(fields: &Fields<'_>) -> Result<Mtu, FileError> {
    Ok(match fields.whole("mtu") {
        None | Some(4096) => Mtu::B4096,
        Some(2048) => Mtu::B2048,
        Some(1024) => Mtu::B1024,
        Some(512) => Mtu::B512,
        Some(256) => Mtu::B256,
        Some(other) => {
            let cause = format!("a path MTU of {other}: RDMA knows 256, 512, 1024, 2048 and 4096");
            return Err(fields.error("mtu", cause));
        }
    })
}

fn test(fields: &Fields<'_>, op: Op) -> Result<Test, FileError> {
    for (name, keys, owner) in [
        ("storage", &STORAGE[..], "a storage target's"),
        ("migration", &MIGRATION[..], "a migration's"),
    ] {
        let is_other = fields.text("test") != Some(name);
        if let Some(key) = keys.iter().find(|key| is_other && fields.has(key)) {
            let cause = format!("'{key}' is {owner}: add test = \"{name}\", or take it out");
            return Err(fields.error(key, cause));
        }
    }
    if fields.text("test") == Some("migration") {
        return migration(fields);
    }
    if fields.text("test") == Some("latency") {
        let without = ["tx_depth", "rx_depth", "post_list", "cq_mod", "duration"];
        if let Some(key) = without.into_iter().find(|key| fields.has(key)) {
            let cause = format!("a latency test has one message in flight: take '{key}' out");
            return Err(fields.error(key, cause));
        }
        if fields.whole("qps").is_some_and(|qps| qps != 1) {
            return Err(fields.error("qps", "a latency test has one QP: take 'qps' out"));
        }
        return Ok(Test::Latency { iterations: fields.whole("iterations").unwrap_or(ITERATIONS) });
    }
    let until = match (fields.whole("iterations"), fields.time("duration")) {
        (Some(_), Some(_)) => {
            let cause = "a flow has both 'iterations' and 'duration': take one of them out";
            return Err(fields.error("duration", cause));
        }
        (None, Some(Duration::ZERO)) => {
            return Err(fields
                .error("duration", "a duration of 0 measures nothing: give some milliseconds"));
        }
        (None, Some(time)) => Until::Elapsed(time),
        (iterations, None) => Until::Iterations(iterations.unwrap_or(ITERATIONS)),
    };
    if fields.text("test") == Some("storage") {
        return storage(fields, until);
    }
    if !op.takes_receive() && fields.has("rx_depth") {
        return Err(fields.error(
            "rx_depth",
            "only SEND and WRITE with immediate data need receives: take 'rx_depth' out",
        ));
    }
    let tx_depth = fields.number("tx_depth").unwrap_or(128);
    let within = |key: &str| match fields.number(key) {
        Some(number) if number > tx_depth => {
            let cause =
                format!("{key} = {number} does not fit a send queue of tx_depth = {tx_depth}");
            Err(fields.error(key, cause))
        }
        number => Ok(number),
    };
    Ok(Test::Bandwidth {
        tx_depth,
        rx_depth: fields.number("rx_depth").unwrap_or(512),
        post_list: within("post_list")?.unwrap_or(1),
        cq_mod: within("cq_mod")?,
        until,
    })
}

fn storage(fields: &Fields<'_>, until: Until) -> Result<Test, FileError> {
    if let Some(key) = ["rx_depth", "post_list", "cq_mod"].into_iter().find(|key| fields.has(key)) {
        let cause = format!("a storage test posts one command at a time: take '{key}' out");
        return Err(fields.error(key, cause));
    }
    Ok(Test::Storage {
        depth: fields.number("tx_depth").unwrap_or(128),
        until,
        storage: Storage {
            in_capsule: fields.number("in_capsule").unwrap_or(IN_CAPSULE),
            cores: fields.number("target_cores").unwrap_or(1),
            command: fields.time("command_time").unwrap_or(Duration::ZERO),
            drive_rate: fields.rate("drive_rate"),
            drive_latency: fields.time("drive_latency").unwrap_or(Duration::ZERO),
        },
    })
}

fn migration(fields: &Fields<'_>) -> Result<Test, FileError> {
    for key in ["iterations", "duration"] {
        if fields.has(key) {
            let cause = format!(
                "a migration ends by itself, or is cancelled at its 'timeout': take '{key}' out"
            );
            return Err(fields.error(key, cause));
        }
    }
    if let Some(key) = ["rx_depth", "post_list", "cq_mod"].into_iter().find(|key| fields.has(key)) {
        let cause = format!("a migration posts one WRITE at a time: take '{key}' out");
        return Err(fields.error(key, cause));
    }
    let timeout = fields.time("timeout").unwrap_or(TIMEOUT);
    if timeout == Duration::ZERO {
        let cause = "a timeout of 0 cancels the migration at once: give some seconds";
        return Err(fields.error("timeout", cause));
    }
    Ok(Test::Migration {
        depth: fields.number("tx_depth").unwrap_or(128),
        timeout,
        migration: Migration {
            setup: fields.time("setup").unwrap_or(Duration::ZERO),
            disk_bytes: fields.whole("disk").unwrap_or(0),
            disk_rate: fields.rate("disk_rate"),
            memory_bytes: fields.whole("memory").unwrap_or(MEMORY),
            memory_rate: fields.rate("memory_rate"),
            writes: writes(fields)?,
            downtime_limit: fields.time("downtime_limit").unwrap_or(DOWNTIME_LIMIT),
        },
    })
}

/// What the guest of a migration writes.
fn writes(fields: &Fields<'_>) -> Result<Option<Writes>, FileError> {
    match (fields.whole("working_set"), fields.rate("dirty_rate")) {
        (Some(0), _) => Ok(None),
        (Some(bytes), Some(rate)) => {
            let pause = fields.time("dirty_pause").unwrap_or(Duration::ZERO);
            Ok(Some(Writes { bytes, rate, pause }))
        }
        (Some(_), None) => {
            let cause = "a guest that writes does so at a rate: add 'dirty_rate', or take \
                         'working_set' out";
            Err(fields.error("working_set", cause))
        }
        (None, _) => match ["dirty_rate", "dirty_pause"].into_iter().find(|key| fields.has(key)) {
            Some(key) => {
                let cause =
                    format!("'{key}' is of a guest that writes: add 'working_set', or take it out");
                Err(fields.error(key, cause))
            }
            None => Ok(None),
        },
    }
}
