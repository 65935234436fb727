//! Performance of a guest's disks and files across a fibre, with and without accelerators, and the
//! doctor's diagnosis.

use super::{Access, BLOCK_KIB, Figures, LIMIT, fio, nfs, nvme};
use crate::RuntimeDir;
use crate::interop::{Between, BoxKind, RxeHosts};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

/// Round trips are told if one takes this part of an operation without distance.
const TOLD_FROM: u32 = 5;
/// Propagation delay in glass.
const PER_KM: Duration = Duration::from_micros(5);

/// Kind of the other guest's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Storage {
    /// A disk, by NVMe-oF.
    NvmeOf,
    /// A file, by NFS.
    Nfs,
}

impl Storage {
    /// Both.
    pub const BOTH: [Storage; 2] = [Storage::NvmeOf, Storage::Nfs];

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Storage::NvmeOf => "NVMe-oF",
            Storage::Nfs => "NFS",
        }
    }

    /// Where the server stores the client's data.
    pub fn kept(self) -> String {
        match self {
            Storage::NvmeOf => nvme::BACKING.to_owned(),
            Storage::Nfs => format!("{}/file", nfs::EXPORTED),
        }
    }

    /// Serves it from the second guest. Once per guest.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn serve(self, hosts: &RxeHosts) {
        let [_, server] = hosts.guests();
        match self {
            Storage::NvmeOf => nvme::serve(server, address(hosts, 1)),
            Storage::Nfs => nfs::serve(server, address(hosts, 0)),
        }
    }

    /// Mounts it in the first guest, calls `with` with the path of the disk or file, unmounts it,
    /// and returns the result.
    ///
    /// # Panics
    /// If it does not come up or does not end.
    pub fn lend<T>(self, hosts: &RxeHosts, with: impl FnOnce(&str) -> T) -> T {
        let [client, _] = hosts.guests();
        let server = address(hosts, 1);
        match self {
            Storage::NvmeOf => {
                let disk = nvme::connect(client, server);
                let result = with(&disk.path);
                nvme::disconnect(client, disk, LIMIT);
                result
            }
            Storage::Nfs => {
                nfs::mount(client, server);
                let result = with(&format!("{}/file", nfs::MOUNTED));
                nfs::unmount(client, LIMIT);
                result
            }
        }
    }
}

fn address(hosts: &RxeHosts, guest: usize) -> Ipv4Addr {
    hosts.address(guest).parse().expect("an address")
}

/// A use of a disk or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Use {
    /// Storage.
    pub storage: Storage,
    /// Reads or writes.
    pub access: Access,
    /// Block size in KiB.
    pub kib: u32,
    /// Operations in flight.
    pub depth: u32,
}

impl Use {
    /// Small blocks, one and many in flight: latency dominates.
    pub fn small() -> impl Iterator<Item = Use> {
        Use::each().flat_map(|(storage, access)| {
            [1, 64].map(|depth| Use { storage, access, kib: BLOCK_KIB, depth })
        })
    }

    /// Large blocks, many in flight: bandwidth dominates.
    pub fn large() -> impl Iterator<Item = Use> {
        Use::each().map(|(storage, access)| Use { storage, access, kib: 1024, depth: 8 })
    }

    /// Writes of 4 KiB to 1 MiB, one at a time: round trips dominate.
    pub fn writes() -> impl Iterator<Item = Use> {
        let access = Access::Write;
        Storage::BOTH.into_iter().flat_map(move |storage| {
            [4, 64, 256, 1024].map(|kib| Use { storage, access, kib, depth: 1 })
        })
    }

    fn each() -> impl Iterator<Item = (Storage, Access)> {
        Storage::BOTH.into_iter().flat_map(|storage| Access::BOTH.map(|access| (storage, access)))
    }
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Use { storage, access, kib, depth } = self;
        write!(f, "{} {} {kib} KiB, depth {depth}", storage.name(), access.name())
    }
}

/// The busiest flow of one direction, and the doctor's diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Direction {
    /// Requester: client or server.
    pub requester: &'static str,
    /// Numbers of messages by operation.
    pub operations: Vec<String>,
    /// Rule that limits it.
    pub limited_by: String,
    /// The rule in words.
    pub words: String,
    /// Warnings about it.
    pub warnings: Vec<String>,
}

/// Result of one use over one fibre.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The use.
    pub what: Use,
    /// Length of the fibre.
    pub km: u32,
    /// The boxes at both ends.
    pub boxes: Option<BoxKind>,
    /// fio's results.
    pub figures: Figures,
    /// Requests from the client, and from the server.
    pub directions: Vec<Direction>,
}

/// Measures `what` for `seconds`, on storage that is served and has been written to. `captures` is
/// a directory for the recordings, which replace earlier ones.
///
/// # Panics
/// If anything fails.
pub fn measure(
    hosts: &RxeHosts,
    what: Use,
    between: Between,
    seconds: u32,
    captures: &Path,
) -> Measured {
    let [client, _] = hosts.guests();
    let boxes = hosts.join(between, Some(captures));
    let figures = what
        .storage
        .lend(hosts, |path| fio(client, path, (what.access, what.kib), what.depth, seconds));
    // Recordings are complete once their recorders have ended.
    boxes.stop();
    let ends = [("client", between.near, "near"), ("server", between.far, "far")];
    let directions =
        ends.into_iter().zip([0, 1]).filter_map(|((requester, accelerated, end), guest)| {
            // The capture nearest to the requester.
            let port = if accelerated { "lan" } else { "wan" };
            let report = doctor(&captures.join(format!("{end}-{port}.pcap")));
            direction(&report, requester, hosts.address(guest))
        });
    let directions = directions.collect();
    let kind = between.near.then_some(between.kind);
    Measured { what, km: between.km, boxes: kind, figures, directions }
}

/// The doctor's report of a capture.
fn doctor(capture: &Path) -> Value {
    let done = RuntimeDir::new().longhaul("doctor --json").arg(capture).output();
    let done = done.unwrap_or_else(|e| panic!("longhaul doctor: {e}"));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| {
        panic!("{}: {e}: {}", capture.display(), String::from_utf8_lossy(&done.stderr))
    })
}

/// The busiest flow from `ip`, if any.
fn direction(report: &Value, requester: &'static str, ip: &str) -> Option<Direction> {
    let flows = report["flows"].as_array()?;
    let own = flows.iter().filter(|flow| flow["requester"]["ip"] == ip);
    let flow = own.max_by_key(|flow| flow["request_packets"].as_u64())?;
    let findings = flow["findings"].as_array()?;
    let limited_by = flow["limited_by"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let words = findings.iter().find(|finding| finding["rule"] == limited_by);
    let is_other =
        |finding: &&Value| finding["severity"] != "note" && finding["rule"] != limited_by;
    let operations = flow["operations"].as_array()?.iter();
    Some(Direction {
        requester,
        operations: operations
            .map(|one| format!("{} {}", one["bytes"]["samples"], text(&one["operation"])))
            .collect(),
        limited_by: limited_by.to_owned(),
        words: words.map(|finding| text(&finding["what"])).unwrap_or_default(),
        warnings: findings.iter().filter(is_other).map(|finding| text(&finding["what"])).collect(),
    })
}

/// A Markdown table: one row per use, with and without accelerators, and the doctor's diagnosis.
pub fn table(all: &[Measured]) -> String {
    let mut text = String::from(
        "| | km | boxes | IOPS | times plain | median | p99 | light alone | round trips | client's \
         requests | server's requests |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for one in all {
        let Figures { iops, median, p99, .. } = one.figures;
        let plain_over = |km| {
            all.iter()
                .find(|other| other.boxes.is_none() && (other.what, other.km) == (one.what, km))
        };
        let times = plain_over(one.km).filter(|_| one.boxes.is_some());
        let times = times.map(|plain| iops / plain.figures.iops);
        let words = |requester| {
            let way = one.directions.iter().find(|way| way.requester == requester);
            way.map_or(String::new(), |way| format!("{}: {}", way.operations.join(", "), way.words))
        };
        let light = 2 * one.km * PER_KM;
        // What distance adds to an operation that waits for no other, where that can be told.
        let added = plain_over(0)
            .filter(|plain| one.what.depth == 1 && TOLD_FROM * light >= plain.figures.median);
        let added = added.map(|plain| median.as_secs_f64() - plain.figures.median.as_secs_f64());
        let row = [
            one.what.to_string(),
            one.km.to_string(),
            one.boxes.map_or("none", BoxKind::name).to_owned(),
            format!("{iops:.0}"),
            times.map_or(String::new(), |times| format!("{times:.2}")),
            format!("{median:.1?}"),
            format!("{p99:.1?}"),
            format!("{light:.1?}"),
            added.map_or(String::new(), |added| format!("{:.2}", added / light.as_secs_f64())),
            words("client"),
            words("server"),
        ];
        _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_busiest_flow_of_the_guest_that_is_meant_is_told_of() {
        let flow = |ip: &str, packets: u32, rule: &str| {
            json!({
                "requester": { "ip": ip }, "request_packets": packets, "limited_by": rule,
                "operations": [{ "operation": "SEND", "bytes": { "samples": packets } }],
                "findings": [
                    { "rule": "sender", "severity": "note", "what": "It pauses" },
                    { "rule": "psn_window", "severity": "warning", "what": "Its window" },
                    { "rule": "timeout", "severity": "warning", "what": "Again" },
                ],
            })
        };
        let flows = json!({ "flows": [
            flow("10.0.0.1", 5, "sender"),
            flow("10.0.0.1", 90, "psn_window"),
            flow("10.0.0.2", 95, "sender"),
        ]});
        let expected = Direction {
            requester: "client",
            operations: vec!["90 SEND".to_owned()],
            limited_by: "psn_window".to_owned(),
            words: "Its window".to_owned(),
            warnings: vec!["Again".to_owned()],
        };
        assert_eq!(direction(&flows, "client", "10.0.0.1"), Some(expected));
        assert_eq!(direction(&flows, "client", "10.0.0.3"), None);
    }

    #[test]
    fn a_row_is_held_against_the_one_of_the_same_fibre_without_boxes() {
        let row = |km, boxes, iops, median| Measured {
            what: Use { storage: Storage::Nfs, access: Access::Write, kib: 4, depth: 1 },
            km,
            boxes,
            figures: Figures { iops, mean: PER_KM, median, p99: PER_KM },
            directions: Vec::new(),
        };
        let ms = Duration::from_millis;
        let text = table(&[
            row(0, None, 900.0, ms(1)),
            row(100, None, 200.0, ms(3)),
            row(100, Some(BoxKind::ReadAhead), 300.0, ms(2)),
        ]);
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| NFS write 4 KiB, depth 1 | 100 | read-ahead | 300 | 1.50 | 2.0ms | 5.0µs | 1.0ms | \
             1.00 |  |  |"
        );
        assert!(text.contains("| 0 | none | 900 |  |"), "{text}");
    }
}
