//! NFS version 4.2 over RDMA: files in the memory of one guest, used by the other.

use super::LIMIT;
use crate::guest::Guest;
use std::net::Ipv4Addr;
use std::time::Duration;

/// IANA port of NFS over RDMA.
pub const PORT: u16 = 20049;
/// Path that the server exports.
pub const EXPORTED: &str = "/export";
/// Path where the client mounts it.
pub const MOUNTED: &str = "/mnt";
const EXPORT_MIB: u32 = 96;
/// Flags of an export (Linux, include/uapi/linux/nfsd/export.h): any source port, no checks of
/// subtrees, and the identifier that comes with it instead of a disk's.
const FLAGS: u32 = 0x0002 | 0x0400 | 0x2000;
/// Latest expiry that the kernel accepts: never.
const EXPIRY: i32 = i32::MAX;

/// Exports a file system in memory to `client`, with root privileges. Once per guest.
///
/// # Panics
/// If the kernel refuses, with its messages.
pub fn serve(guest: &Guest, client: Ipv4Addr) {
    // The kernel asks mountd for access rights, once per question. The answers are written here in
    // advance: the address is a client, the client has the export with identifier 0, and that
    // identifier's handle is the root. Version 3 would need a portmapper for its locks. After a
    // start, clients may reclaim locks for 90 s, unless the kernel finds an empty directory of
    // known clients.
    let script = format!(
        "set -e
        mkdir -p {EXPORTED} /var/lib/nfs/v4recovery
        mount -t tmpfs -o size={EXPORT_MIB}m tmpfs {EXPORTED}
        mount -t nfsd nfsd /proc/fs/nfsd
        cd /proc/net/rpc
        echo 'nfsd {client} {EXPIRY} client' >auth.unix.ip/channel
        echo 'client {EXPORTED} {EXPIRY} {FLAGS} 65534 65534 0' >nfsd.export/channel
        printf '%s\\n' 'client 1 \\x00000000 {EXPIRY} {EXPORTED}' >nfsd.fh/channel
        cd /proc/fs/nfsd
        echo -3 >versions
        echo 'rdma {PORT}' >portlist
        echo 4 >threads
        echo Y >v4_end_grace"
    );
    guest.succeed(&script, LIMIT);
}

/// Mounts the export of `server`.
///
/// # Panics
/// If that fails, or it does not use RDMA.
pub fn mount(guest: &Guest, server: Ipv4Addr) {
    let script = format!(
        "set -e
        mkdir -p {MOUNTED}
        busybox mount -t nfs4 -o vers=4.2,proto=rdma,port={PORT},addr={server} {server}:/ {MOUNTED}
        grep ' {MOUNTED} nfs4 .*proto=rdma' /proc/mounts"
    );
    guest.succeed(&script, LIMIT);
}

/// Unmounts it, with all data written back.
///
/// # Panics
/// If that fails or takes longer than `limit`.
pub fn unmount(guest: &Guest, limit: Duration) {
    guest.succeed(&format!("umount {MOUNTED}"), limit);
}
