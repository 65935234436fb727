//! NVMe-oF, NFS over RDMA and QEMU's live migration between two kernels with rxe, connected
//! directly: the reference for the same over a distance with accelerators. Skipped, loudly, if no
//! kernel can be downloaded.

use longhaul_checks::guest::{Guest, GuestConfig, Netdev, skip_loudly};
use longhaul_checks::interop::storage::{self, Access, migration, nfs, nvme};
use longhaul_checks::{RuntimeDir, Turn};
use std::net::Ipv4Addr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const MTU: u16 = 4400;
const COPIED_MIB: u32 = 16;
const VERIFIED_MIB: u32 = 4;
const DEPTHS: [u32; 2] = [1, 64];
const SECONDS: u32 = 2;

/// Two guests and the cable between them.
struct Joined {
    client: Guest,
    server: Guest,
    /// Sockets of the cable's ends, which are found by path for each frame.
    _sockets: RuntimeDir,
}

/// `None`: skipped.
fn boot(what: &str, client: GuestConfig, server: GuestConfig) -> Option<Joined> {
    let sockets = RuntimeDir::new();
    let [first, second] = ["first", "second"].map(|name| sockets.path().join(name));
    let (mut client, mut server) = (client.rxe(), server.rxe());
    client.netdevs.push(Netdev::datagrams(&first, &second, "52:54:00:07:00:01", MTU));
    server.netdevs.push(Netdev::datagrams(&second, &first, "52:54:00:07:00:02", MTU));
    let up = |config: &GuestConfig, address| {
        let guest = Guest::boot(config).inspect_err(|reason| skip_loudly(what, reason)).ok()?;
        let setup = format!(
            "set -e
            ip link set eth0 up
            ip address add {address}/24 dev eth0
            rdma link add rxe0 type rxe netdev eth0"
        );
        guest.succeed(&setup, LIMIT);
        Some(guest)
    };
    Some(Joined { client: up(&client, CLIENT)?, server: up(&server, SERVER)?, _sockets: sockets })
}

/// All uses of a disk or file; `kept` is the server's path of it.
fn use_it(name: &str, client: &Guest, path: &str, server: &Guest, kept: &str) {
    let copied = storage::write_and_compare(client, path, COPIED_MIB, LIMIT);
    let (written, read) = (copied.written_in, copied.read_in);
    println!("{name}: {COPIED_MIB} MiB written in {written:.2?}, read in {read:.2?}");
    assert_eq!(
        storage::digest(server, kept, COPIED_MIB),
        copied.digest,
        "{name}: the server has other bytes"
    );
    storage::verify(client, path, VERIFIED_MIB, LIMIT);
    for access in Access::BOTH {
        for depth in DEPTHS {
            let figures = storage::fio(client, path, (access, storage::BLOCK_KIB), depth, SECONDS);
            println!("{name}: {access:?} 4 KiB, depth {depth}: {figures}");
            assert!(figures.iops > 0.0, "{name}: {access:?} at depth {depth} does nothing");
        }
    }
}

#[test]
#[ignore = "a minute each: cargo xtask interop"]
fn disks_and_files_of_another_kernel_hold_what_was_written() {
    let _turn = Turn::take();
    let (client, server) = (GuestConfig::new("client"), GuestConfig::new("server"));
    let booted = boot("NVMe-oF and NFS over rxe", storage::client(client), storage::server(server));
    let Some(Joined { client, server, _sockets }) = booted else { return };

    nvme::serve(&server, SERVER);
    let disk = nvme::connect(&client, SERVER);
    use_it("NVMe-oF", &client, &disk.path, &server, nvme::BACKING);
    nvme::disconnect(&client, disk, LIMIT);

    nfs::serve(&server, CLIENT);
    nfs::mount(&client, SERVER);
    let file = |place| format!("{place}/file");
    use_it("NFS", &client, &file(nfs::MOUNTED), &server, &file(nfs::EXPORTED));
    nfs::unmount(&client, LIMIT);
}

#[test]
#[ignore = "a minute each: cargo xtask interop"]
fn a_machine_moves_with_its_memory_while_it_runs() {
    let _turn = Turn::take();
    let (source, target) = (GuestConfig::new("source"), GuestConfig::new("target"));
    let booted =
        boot("migration over rxe", migration::hypervisor(source), migration::hypervisor(target));
    let Some(Joined { client: source, server: target, _sockets }) = booted else { return };
    for transport in migration::Transport::ALL {
        let moved = migration::migrate(&source, &target, SERVER, transport, LIMIT);
        let moved = moved.unwrap_or_else(|report| panic!("{transport:?}: {report}"));
        println!("{transport:?}: {moved:?}");
        assert!(moved.transferred_kib >= u64::from(migration::STILL_MIB) * 1024, "{moved:?}");
    }
}
