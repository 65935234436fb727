//! NVMe-oF, NFS over RDMA and QEMU's live migration between two kernels with rxe, over a fibre,
//! with and without accelerators. Skipped, loudly, if no kernel can be downloaded.

use longhaul_checks::guest::{GuestConfig, skip_loudly};
use longhaul_checks::interop::storage::migration::{self, Moved, Transport};
use longhaul_checks::interop::storage::over_distance::{Storage, Use};
use longhaul_checks::interop::storage::{digest, fio, verify, write_and_compare};
use longhaul_checks::interop::{Between, RxeHosts, segments, storage};
use longhaul_checks::segments::{FlowProof, Segments, prove};
use longhaul_checks::{Turn, longhaul};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const COPIED_MIB: u32 = 16;
const VERIFIED_MIB: u32 = 4;
const SECONDS: u32 = 2;
/// A migration without accelerators over the longest fibre does not end within this.
const PLAIN_LIMIT: Duration = Duration::from_secs(20);

fn boot(name: &str, what: &str, extend: impl Fn(GuestConfig) -> GuestConfig) -> Option<RxeHosts> {
    RxeHosts::boot(name, extend).inspect_err(|reason| skip_loudly(what, reason)).ok()
}

#[test]
#[ignore = "minutes: cargo xtask interop"]
fn disks_and_files_beyond_100_km_hold_what_was_written() {
    let _turn = Turn::take();
    let both_roles = |config| storage::server(storage::client(config));
    let Some(hosts) = boot("std", "NVMe-oF and NFS over a fibre", both_roles) else { return };
    let [client, server] = hosts.guests();
    let captures = longhaul().with_file_name("interop-storage-segments");
    std::fs::create_dir_all(&captures).unwrap_or_else(|e| panic!("{}: {e}", captures.display()));
    for storage in Storage::BOTH {
        let _boxes = hosts.join(Between::plain(0), None);
        storage.serve(&hosts);
    }
    for between in [Between::accelerated(0), Between::plain(100), Between::accelerated(100)] {
        for storage in Storage::BOTH {
            let boxes = hosts.join(between, Some(&captures));
            let way =
                format!("{} km, accelerators {}: {}", between.km, between.near, storage.name());
            storage.lend(&hosts, |path| {
                let copied = write_and_compare(client, path, COPIED_MIB, LIMIT);
                let (written, read) = (copied.written_in, copied.read_in);
                println!("{way}: {COPIED_MIB} MiB written in {written:.2?}, read in {read:.2?}");
                assert_eq!(
                    digest(server, &storage.kept(), COPIED_MIB),
                    copied.digest,
                    "{way}: the server has other bytes"
                );
                verify(client, path, VERIFIED_MIB, LIMIT);
                for one in Use::small().filter(|one| one.storage == storage) {
                    let figures = fio(client, path, (one.access, one.kib), one.depth, SECONDS);
                    println!("{way}: {one}: {figures}");
                    assert!(figures.iops > 0.0, "{way}: {one} does nothing");
                }
            });
            boxes.stop();
            if between.near {
                check_promises(&way, &captures);
            }
        }
    }
}

/// Checks that the recordings show no broken promise.
fn check_promises(way: &str, captures: &Path) {
    let files = segments(captures);
    let proof = Segments::open(files.each_ref().map(|path| Some(path.as_path()))).map(prove);
    let proof = proof.unwrap_or_else(|e| panic!("{}: {e}", captures.display())).unwrap();
    assert!(proof.holds(), "{way}: {proof:#?}");
    let sum = |count: fn(&FlowProof) -> u64| proof.flows.iter().map(count).sum::<u64>();
    println!(
        "{way}: {} requests, {} came twice",
        sum(|flow| flow.sent),
        sum(|flow| flow.arrived_again)
    );
}

/// Migrates a machine; `None` if it does not end in time.
fn migrate(
    hosts: &RxeHosts,
    between: Between,
    transport: Transport,
    limit: Duration,
) -> Option<Moved> {
    let [source, target] = hosts.guests();
    let address = hosts.address(1).parse().unwrap();
    let _boxes = hosts.join(between, None);
    let way = format!("{between:?}, {transport:?}");
    match migration::migrate(source, target, address, transport, limit) {
        Ok(moved) => {
            println!("{way}: {moved:?}");
            assert!(
                moved.transferred_kib >= u64::from(migration::STILL_MIB) * 1024,
                "{way}: {moved:?}"
            );
            Some(moved)
        }
        Err(report) => {
            let goes_on = ["active", "setup"].map(|status| format!("Migration status: {status}"));
            assert!(goes_on.iter().any(|status| report.contains(status)), "{way}: {report}");
            println!("{way}: not within {limit:?}");
            None
        }
    }
}

#[test]
#[ignore = "minutes: cargo xtask interop"]
fn a_machine_moves_over_5000_km_with_accelerators_only() {
    let _turn = Turn::take();
    let Some(hosts) = boot("mgd", "migration over a fibre", migration::hypervisor) else { return };
    let mut table = String::from(
        "| one way | | in all | downtime |
|---|---|---|---|
",
    );
    for km in [0, 1000, 5000] {
        let (with, without) = (Between::accelerated(km), Between::plain(km));
        for (name, between, transport, limit) in [
            ("RDMA, accelerators", with, Transport::Rdma, LIMIT),
            ("RDMA, accelerators, memory pinned", with, Transport::RdmaPinned, LIMIT),
            ("RDMA, plain", without, Transport::Rdma, PLAIN_LIMIT),
            ("RDMA, plain, memory pinned", without, Transport::RdmaPinned, PLAIN_LIMIT),
            ("TCP", without, Transport::Tcp, LIMIT),
        ] {
            let moved = migrate(&hosts, between, transport, limit);
            let [total, downtime] = match moved {
                Some(Moved { total, downtime, .. }) => {
                    [format!("{total:.2?}"), format!("{downtime:.0?}")]
                }
                None => [format!("not in {limit:.0?}"), String::new()],
            };
            table += &format!("| {} ms | {name} | {total} | {downtime} |\n", km / 200);
            let is_plain_rdma = !between.near && transport != Transport::Tcp;
            assert!(moved.is_some() || is_plain_rdma, "{km} km, {name}: not in {limit:?}");
            let is_refuted = km == 5000 && is_plain_rdma && transport == Transport::Rdma;
            assert!(!is_refuted || moved.is_none(), "{km} km, {name}: {moved:?}");
        }
    }
    println!("{table}");
}
