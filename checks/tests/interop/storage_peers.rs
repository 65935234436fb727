//! Our NVMe-oF target and host with the kernel's. Skipped, loudly, if no guest is available.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::storage::kernel_peer::{
    KEEP_ALIVE_S, KERNELS, KernelPeer, OURS, PATIENT_S, Verified, fio, json, totals,
};
use longhaul_checks::interop::storage::write_and_compare;
use longhaul_checks::{Program, RuntimeDir, Turn};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
const FIRST: &str = "/dev/nvme0n1";
const SECOND: &str = "/dev/nvme0n2";

fn boot(name: &str, what: &str) -> Option<KernelPeer> {
    KernelPeer::boot(name).inspect_err(|reason| skip_loudly(what, reason)).ok()
}

fn count(totals: &Value, what: &str) -> u64 {
    totals[what].as_u64().unwrap_or_else(|| panic!("no {what}: {totals}"))
}

#[test]
fn disks_pass_both_ways_between_the_kernel_and_us() {
    let _turn = Turn::take();
    let Some(peer) = boot("nb", "NVMe-oF with the kernel") else { return };
    let mut target = peer.target("--namespace memory:16M");
    target.wait_for_output("serving", LIMIT);
    peer.connect("-i 2", PATIENT_S, 1);
    let copied = write_and_compare(peer.guest(), FIRST, 1, LIMIT);
    println!("1 MiB written in {:.2?}, read in {:.2?}", copied.written_in, copied.read_in);
    peer.disconnect();
    let totals = totals(target);
    assert!(count(&totals, "invalidations") > 0, "no SEND with invalidate: {totals}");
    peer.serve();
    let host = peer.host(&format!(
        "--keep-alive {PATIENT_S} --rw randrw --bs 4K --depth 16 --size 1M --verify --ops 500"
    ));
    let job = json(&host.succeed(LIMIT))["jobs"][0].clone();
    assert_eq!(job["verify"]["mismatches"], 0, "{job}");
    peer.expect_no_complaints();
}

#[test]
#[ignore = "two minutes: cargo xtask interop"]
fn the_kernels_host_uses_our_target() {
    let _turn = Turn::take();
    let Some(peer) = boot("nh", "the kernel's host with our target") else { return };
    let files = RuntimeDir::new();
    let image = files.path().join("disk.img");
    let mut target = peer.target(&format!(
        "--namespace memory:64M --namespace file:{}:64M --block 512 --block 4096 --queues 4",
        image.display()
    ));
    target.wait_for_output("serving", LIMIT);
    let found = peer.nvme(&format!("discover {}", peer.ours_at()));
    let records = found["records"].as_array().unwrap_or_else(|| panic!("{found}"));
    let names: Vec<&Value> = records.iter().map(|one| &one["subnqn"]).collect();
    assert_eq!(names, ["nqn.2014-08.org.nvmexpress.discovery", OURS], "{found}");
    peer.connect("-i 4 -Q 64", PATIENT_S, 2);
    describes_itself(&peer);
    for (disk, sizes) in
        [(FIRST, &[512, 4096, 65_536, 1 << 20][..]), (SECOND, &[4096, 65_536, 1 << 20])]
    {
        for &bytes in sizes {
            let start = Instant::now();
            let mib = if bytes == 512 { 1 } else { 4 };
            peer.verify(disk, Verified { bytes, depth: 32, jobs: 4, mib });
            println!("{disk}: 4 jobs of {mib} MiB at {bytes} bytes in {:.1?}", start.elapsed());
        }
        write_and_compare(peer.guest(), disk, 8, LIMIT);
        other_commands_work(&peer, disk);
    }
    refusals_have_their_status(&peer);
    peer.disconnect();
    // Without SQ flow control, and after an association before.
    peer.connect("-i 1 -D", PATIENT_S, 2);
    peer.sh("nvme reset /dev/nvme0");
    peer.wait_for_state("live");
    peer.verify(FIRST, Verified { bytes: 4096, depth: 16, jobs: 1, mib: 1 });
    peer.disconnect();
    let totals = totals(target);
    println!("{totals}");
    assert!(count(&totals, "in_capsule_writes") > 1000, "{totals}");
    assert!(count(&totals, "invalidations") > 1000, "{totals}");
    peer.expect_no_complaints();
}

/// nvme-cli's views of controller and namespaces.
fn describes_itself(peer: &KernelPeer) {
    let controller = peer.nvme("id-ctrl /dev/nvme0");
    assert_eq!(controller["mn"].as_str().map(str::trim), Some("Longhaul"), "{controller}");
    assert_eq!((&controller["ioccsz"], &controller["cmic"]), (&260.into(), &2.into()));
    for (disk, blocks, format) in [(FIRST, 64 << 11, 9), (SECOND, 64 << 8, 12)] {
        let namespace = peer.nvme(&format!("id-ns {disk}"));
        assert_eq!(
            (&namespace["nsze"], &namespace["lbafs"][0]["ds"]),
            (&blocks.into(), &format.into())
        );
        let bytes = peer.sh(&format!("cat /sys/block/{}/queue/logical_block_size", &disk[5..]));
        assert_eq!(bytes.trim(), (1 << format).to_string());
    }
    // A controller has one write cache for all namespaces.
    let cache = |disk: &str| peer.sh(&format!("cat /sys/block/{}/queue/write_cache", &disk[5..]));
    assert_eq!([cache(FIRST), cache(SECOND)], ["write back\n"; 2]);
    assert_eq!(peer.sh("cat /sys/block/nvme0n2/queue/fua"), "1\n");
    let health = peer.nvme("smart-log /dev/nvme0");
    assert_eq!((&health["critical_warning"], &health["avail_spare"]), (&0.into(), &100.into()));
    let errors = peer.nvme("error-log /dev/nvme0");
    assert_eq!(errors["errors"].as_array().map(Vec::len), Some(1), "{errors}");
    peer.nvme("fw-log /dev/nvme0");
    let namespaces = peer.nvme("list-ns /dev/nvme0");
    assert_eq!(namespaces["nsid_list"].as_array().map(Vec::len), Some(2), "{namespaces}");
    // `nvme effects-log` maps registers of PCI Express.
    peer.sh("nvme get-log /dev/nvme0 -i 5 -l 4096");
    peer.sh("nvme get-feature /dev/nvme0 -f 7; nvme list-subsys");
}

/// Flush, Force Unit Access, Write Zeroes, Deallocate and Compare of the first MiB of `disk`.
fn other_commands_work(peer: &KernelPeer, disk: &str) {
    let name = &disk[5..];
    peer.sh(&format!(
        "block=$(cat /sys/block/{name}/queue/logical_block_size)
        zeros() {{ dd if={disk} bs=64k count=4 skip=$1 iflag=direct | cmp -n 262144 - /dev/zero; }}
        dd if=/dev/urandom of=/tmp/pattern bs=1M count=1
        dd if=/tmp/pattern of={disk} bs=64k oflag=direct,dsync conv=notrunc
        nvme flush {disk}
        dd if={disk} bs=1M count=1 iflag=direct | cmp - /tmp/pattern
        blocks=$((262144 / block))
        nvme compare {disk} -s 0 -c $((4096 / block - 1)) -z 4096 -d /tmp/pattern
        nvme write-zeroes {disk} -s 0 -c $((blocks - 1))
        zeros 0
        nvme dsm {disk} --ad -s $blocks -b $blocks
        zeros 4
        blkdiscard -o 524288 -l 262144 {disk}
        zeros 8
        blkdiscard -z -o 786432 -l 131072 {disk}
        dd if={disk} bs=64k count=2 skip=12 iflag=direct | cmp -n 131072 - /dev/zero
        dd if={disk} bs=64k count=2 skip=14 iflag=direct >/tmp/rest
        dd if=/tmp/pattern bs=64k count=2 skip=14 | cmp - /tmp/rest"
    ));
    let last = if disk == FIRST { 7 } else { 0 };
    let compare = format!("compare {disk} -s 0 -c {last} -z 4096 -d /tmp/pattern");
    peer.nvme_fails(&compare, "Compare Failure");
}

fn refusals_have_their_status(peer: &KernelPeer) {
    let beyond = 64 << 11;
    for (line, status) in [
        (format!("compare {FIRST} -s 0 -c 0 -z 4096 -d /tmp/pattern"), "Data SGL Length Invalid"),
        (format!("read {FIRST} -s {beyond} -c 0 -z 512"), "LBA Out of Range"),
        (format!("io-passthru {FIRST} -n 1 --opcode=0x7d -l 512 -w"), "Invalid Command Opcode"),
        ("id-ns /dev/nvme0 -n 9".to_owned(), "Invalid Namespace"),
        ("get-log /dev/nvme0 -i 0xc0 -l 512".to_owned(), "Invalid Log Page"),
        ("set-feature /dev/nvme0 -f 6 -v 0".to_owned(), "Feature Not Changeable"),
    ] {
        peer.nvme_fails(&line, status);
    }
    let other = format!("connect {} -n {OURS}.other", peer.ours_at());
    peer.nvme_fails(&other, "");
}

/// Waits until a file differs from `before`.
fn wait_for_change(path: &Path, before: &[u8]) {
    let begun = Instant::now();
    while fs::read(path).unwrap() == before {
        assert!(begun.elapsed() < LIMIT, "nothing is written");
        sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "two minutes: cargo xtask interop"]
fn the_kernels_host_returns_after_cuts() {
    let _turn = Turn::take();
    let Some(peer) = boot("nr", "the kernel's host after cuts") else { return };
    let files = RuntimeDir::new();
    let image = files.path().join("disk.img");
    let options = format!("--namespace file:{}:64M --block 4096", image.display());
    let serve = || {
        let mut target = peer.target(&options);
        target.wait_for_output("serving", LIMIT);
        target
    };
    let mut target = serve();
    peer.connect("-i 2", KEEP_ALIVE_S, 1);
    let how = Verified { bytes: 4096, depth: 16, jobs: 2, mib: 16 };

    // The target dies with operations outstanding.
    let before = fs::read(&image).unwrap();
    let job = peer.guest().spawn(&fio(FIRST, how), LIMIT);
    wait_for_change(&image, &before);
    target.signal(libc::SIGKILL);
    target.wait(LIMIT);
    let died = Instant::now();
    peer.wait_for_state("connecting");
    println!("the kernel gives the dead target up after {:.1?}", died.elapsed());
    target = serve();
    let served = Instant::now();
    peer.wait_for_state("live");
    println!("and is back {:.1?} after the new one's start", served.elapsed());
    assert!(job.is_running(), "fio had ended before the cut");
    job.succeed();

    // The cable is cut for longer than the keep-alive timeout.
    let before = fs::read(&image).unwrap();
    let job = peer.guest().spawn(&fio(FIRST, how), LIMIT);
    wait_for_change(&image, &before);
    peer.plug(false);
    let cut = Instant::now();
    ends_all_queues(&mut target);
    println!("the target has ended the queues of the silent host after {:.1?}", cut.elapsed());
    peer.wait_for_state("connecting");
    println!("the kernel has given the target up after {:.1?}", cut.elapsed());
    assert!(cut.elapsed() > Duration::from_secs(KEEP_ALIVE_S));
    peer.plug(true);
    let joined = Instant::now();
    peer.wait_for_state("live");
    println!("and is back {:.1?} after the cable", joined.elapsed());
    job.succeed();
    peer.disconnect();
    let totals = totals(target);
    println!("{totals}");
    peer.expect_no_complaints();
}

/// Waits until the target says why it ends a host's admin queue.
fn ends_all_queues(target: &mut Program) {
    target.wait_for_output("its keep-alive timer expired", LIMIT);
}

#[test]
#[ignore = "a minute: cargo xtask interop"]
fn our_host_uses_the_kernels_target() {
    let _turn = Turn::take();
    let Some(peer) = boot("nt", "our host with the kernel's target") else { return };
    peer.serve();
    let found = peer.discovered();
    let names = found.as_array().unwrap().iter().map(|one| &one["subnqn"]);
    assert!(names.clone().any(|name| name == KERNELS), "{found}");
    for options in [
        "--rw randrw --bs 512 --depth 32 --ops 2000",
        "--rw randrw --bs 4K --depth 64 --jobs 2 --ops 2000",
        "--rw write --bs 64K --depth 16 --ops 300",
        "--rw randrw --bs 1M --depth 4 --ops 40",
        "--namespace 2 --rw randrw --bs 4K --depth 127 --ops 2000",
        "--namespace 2 --rw randrw --bs 128K --depth 8 --jobs 2 --ops 100",
    ] {
        let done = peer.host(&format!("--verify {options}")).succeed(LIMIT);
        let job = json(&done)["jobs"][0].clone();
        assert_eq!(job["verify"]["mismatches"], 0, "{options}: {job}");
        assert!(job["verify"]["verified"].as_u64() > Some(0), "{options}: {job}");
        println!("{options}: {} and {} IOPS", job["read"]["iops"], job["write"]["iops"]);
    }
    what_the_kernel_refuses_is_told(&peer);
    the_end_of_the_port_is_told(&peer);
    peer.expect_no_complaints();
}

fn what_the_kernel_refuses_is_told(peer: &KernelPeer) {
    let refused = |options: &str, text: &str| {
        let done = peer.host(&format!("{options} --ops 10")).finish(LIMIT);
        assert!(!done.status.success() && done.stderr.contains(text), "{text}: {done}");
    };
    refused("--nqn nqn.2026-01.longhaul:none", "list the subsystems with 'longhaul storage disc");
    refused("--namespace 7", "no namespace 7");
    refused("--namespace 2 --bs 512", "no multiple of the namespace's blocks of 4096 bytes");
    refused("--depth 128", "use a smaller --depth");
    let set = |key: &str, value: &str| peer.sh(&format!("echo {value} >/sys/kernel/config/{key}"));
    let any_host = format!("nvmet/subsystems/{KERNELS}/attr_allow_any_host");
    set(&any_host, "0");
    refused("", "name a host that the target admits with --host-nqn");
    set(&any_host, "1");
    set("nullb/nullb0/badblocks", "+0-7");
    refused("--namespace 2 --rw read --bs 4K --depth 1", "Read at block 0 failed: ");
    set("nullb/nullb0/badblocks", "-0-7");
    peer.host("--namespace 2 --rw read --bs 4K --depth 1 --ops 10").succeed(LIMIT);
}

/// The port is removed under load and added again.
fn the_end_of_the_port_is_told(peer: &KernelPeer) {
    let load = "--namespace 2 --rw randrw --bs 4K --depth 16 --verify";
    let writes = "$(awk '{print $5}' /sys/block/nullb0/stat)";
    peer.sh(&format!("echo {writes} >/tmp/before"));
    let host = peer.host(&format!("{load} --runtime 600"));
    peer.sh(&format!("until [ {writes} -gt $(($(cat /tmp/before) + 100)) ]; do sleep 0.05; done"));
    peer.open_port(false);
    let removed = Instant::now();
    let lost = host.finish(LIMIT);
    println!("our host ends {:.1?} after the port: {}", removed.elapsed(), lost.stderr.trim());
    assert!(!lost.status.success() && lost.stderr.contains("the target disconnected"), "{lost}");
    let again = peer.host(&format!("{load} --ops 500 --wait 100"));
    peer.open_port(true);
    again.succeed(LIMIT);
}
