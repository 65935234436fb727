//! GIDs, address handles, and multicast groups.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd,
    ibv_qp, ibv_wc,
};
use longhaul_rdma::{Attach, Engine};
use longhaul_rnic::{AddressVector, AhId};
use longhaul_ud::{GRH_LEN, NetworkHeader};
use longhaul_wire::mad::{gid_of_ip, ip_of_gid};

use crate::device::{self, PORT};
use crate::domain::Domain;
use crate::guard::{guarded, minus_one, null, returned};
use crate::object::{self, Kind, User};
use crate::queue_pair::queue_pair;

/// The bits that make a flow label. Like kernel drivers, the device ignores the others, which UCX
/// sets.
const FLOW_LABEL: u32 = 0xf_ffff;
/// Default TTL.
pub(crate) const HOP_LIMIT_DEFAULT: u8 = 64;

/// The library's part of an address handle.
pub(crate) struct AddressHandle {
    engine: Arc<Engine>,
    pub(crate) id: AhId,
    _domain: User,
}

impl Kind for AddressHandle {
    type Public = ibv_ah;
    const MARK: u64 = 0x6c68_5f61_685f_5f5f;
}

/// The GID of an IP address.
pub(crate) fn gid_of(ip: IpAddr) -> ibv_gid {
    ibv_gid::from_bytes(gid_of_ip(ip))
}

/// The address with index `index` of the GID table.
///
/// If the table has one entry, index 1 stands for it: a kernel device has the GID of its IPv4
/// address there, and scripts pass that index.
pub(crate) fn address_at(attach: &Attach, index: u8) -> Option<IpAddr> {
    let mut addresses = attach.addresses.iter();
    if addresses.len() == 1 && index == 1 { addresses.next() } else { addresses.nth(index.into()) }
}

/// The index of the port's address for packets to `peer`.
fn index_towards(attach: &Attach, peer: IpAddr) -> u8 {
    let source = attach.source_for(peer);
    attach.addresses.iter().position(|address| address == source).unwrap_or(0) as u8
}

/// The IP address of a GID, as a port with an address like `port` reaches it.
///
/// An IPv4 group has two forms, `::ffff:a.b.c.d` and, from RoCEv1, `ff0e::ffff:a.b.c.d`. Any other
/// multicast GID on an IPv4 port maps to the group with its last three bytes in the
/// organization-local range, with which it would share an Ethernet address. Source: Linux,
/// `cma_iboe_set_mgid`; RFC 2365.
pub(crate) fn ip_of(gid: &ibv_gid, port: IpAddr) -> IpAddr {
    let ip = ip_of_gid(gid.bytes());
    match ip {
        IpAddr::V6(group) if group.is_multicast() && port.is_ipv4() => {
            let [_, _, middle @ .., x, y, a, b, c, d] = group.octets();
            let names_ipv4 = middle == [0; 8]
                && (x, y) == (0xff, 0xff)
                && Ipv4Addr::new(a, b, c, d).is_multicast();
            IpAddr::V4(if names_ipv4 {
                Ipv4Addr::new(a, b, c, d)
            } else {
                Ipv4Addr::new(239, b, c, d)
            })
        }
        ip => ip,
    }
}

/// The device's form of an address, or the errno that refuses it.
pub(crate) fn address_of(attr: &ibv_ah_attr, attach: &Attach) -> Result<AddressVector, c_int> {
    if attr.port_num != PORT {
        return Err(libc::EINVAL);
    }
    if attr.is_global == 0 {
        return Ok(AddressVector {
            destination_ip: neighbour(attr.dlid, attach.ip_addr()).ok_or(libc::EINVAL)?,
            hop_limit: HOP_LIMIT_DEFAULT,
            traffic_class: 0,
            flow_label: 0,
        });
    }
    let source = address_at(attach, attr.grh.sgid_index).ok_or(libc::EINVAL)?;
    let destination_ip = ip_of(&attr.grh.dgid, source);
    // The device sends from the address of the destination's family.
    if destination_ip.is_ipv4() != source.is_ipv4() {
        return Err(libc::EINVAL);
    }
    Ok(AddressVector {
        destination_ip,
        hop_limit: if attr.grh.hop_limit == 0 { HOP_LIMIT_DEFAULT } else { attr.grh.hop_limit },
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & FLOW_LABEL,
    })
}

/// The port with this LID beside `own`; LID 0 is invalid.
fn neighbour(lid: u16, own: IpAddr) -> Option<IpAddr> {
    let mut gid = gid_of_ip(own);
    gid[14..].copy_from_slice(&lid.to_be_bytes());
    (lid != 0).then(|| ip_of_gid(gid))
}

/// The address of a peer in the program's form.
pub(crate) fn public_address(attach: &Attach, address: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_of(address.destination_ip),
            flow_label: address.flow_label,
            sgid_index: index_towards(attach, address.destination_ip),
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        is_global: 1,
        port_num: PORT,
        ..ibv_ah_attr::zeroed()
    }
}

/// Creates an address handle.
///
/// # Safety
/// `pd` is null or points to readable memory.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    // SAFETY: the program's pointer, checked as far as possible.
    let domain = unsafe { object::resolve::<Domain>(pd) }.ok_or(libc::EINVAL)?;
    let engine = &domain.engine;
    let address = address_of(attr, engine.attach())?;
    let id = engine.create_ah(domain.id, &address).map_err(|error| error.errno())?;
    // SAFETY: a live protection domain.
    let public = ibv_ah { context: unsafe { (*pd).context }, pd, handle: id.0 };
    Ok(object::create(
        public,
        AddressHandle { engine: Arc::clone(engine), id, _domain: domain.users.join() },
    ))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer.
        let Some(attr) = (unsafe { attr.as_ref() }) else { return null(libc::EINVAL) };
        // SAFETY: passed on.
        unsafe { create(pd, attr) }.unwrap_or_else(null)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { object::resolve::<AddressHandle>(ah) }) else {
            return returned(libc::EINVAL);
        };
        let freed = ours.engine.with_quietly(|rnic| rnic.destroy_ah(ours.id));
        if let Err(error) = freed.and_then(|done| Ok(done?)) {
            return returned(error.errno());
        }
        // SAFETY: live, and the program destroys it.
        unsafe { object::destroy::<AddressHandle>(ah) };
        0
    })
}

/// The address for a reply to a datagram; `None` if its metadata contains none.
///
/// # Safety
/// If the completion says that a GRH is present, `grh` points to the 40 bytes before the datagram.
unsafe fn sender(attach: &Attach, wc: &ibv_wc, grh: *const ibv_grh) -> Option<ibv_ah_attr> {
    if wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees the 40 bytes, whose alignment is up to the program.
    let area = unsafe { grh.cast::<[u8; GRH_LEN]>().read_unaligned() };
    let header = NetworkHeader::read(&area)?;
    let address = AddressVector {
        destination_ip: header.source,
        hop_limit: u8::MAX,
        traffic_class: header.traffic_class,
        flow_label: header.flow_label,
    };
    let mut attr = public_address(attach, &address);
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.dlid = wc.slid;
    Some(attr)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(wc)) = (unsafe { (device::context(context), wc.as_ref()) }) else {
            return minus_one(libc::EINVAL);
        };
        if port != PORT || attr.is_null() {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: the caller gives the 40 bytes, and room for an address.
        match unsafe { sender(ours.engine.attach(), wc, grh) } {
            Some(found) => {
                // SAFETY: as above.
                unsafe { attr.write(found) };
                0
            }
            None => minus_one(libc::EPROTONOSUPPORT),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer.
        let (Some(domain), Some(wc)) = (unsafe { (object::resolve::<Domain>(pd), wc.as_ref()) })
        else {
            return null(libc::EINVAL);
        };
        if port != PORT {
            return null(libc::EINVAL);
        }
        // SAFETY: the caller gives the 40 bytes.
        let Some(attr) = (unsafe { sender(domain.engine.attach(), wc, grh) }) else {
            return null(libc::EPROTONOSUPPORT);
        };
        // SAFETY: passed on.
        unsafe { create(pd, &attr) }.unwrap_or_else(null)
    })
}

/// Attaches a datagram queue pair to a group, or detaches it. The LID has no meaning on RoCE.
///
/// # Safety
/// The pointers are null or point to readable memory.
unsafe fn change_membership(qp: *mut ibv_qp, gid: *const ibv_gid, joins: bool) -> c_int {
    // SAFETY: the program's pointers, checked as far as possible.
    let (Some(ours), Some(gid)) = (unsafe { (queue_pair(qp), gid.as_ref()) }) else {
        return returned(libc::EINVAL);
    };
    let group = ip_of(gid, ours.engine.attach().ip_addr());
    let changed = match joins {
        true => ours.engine.attach_multicast(ours.qpn, group),
        false => ours.engine.detach_multicast(ours.qpn, group),
    };
    changed.map_or_else(|error| returned(error.errno()), |()| 0)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: passed on.
    guarded(libc::EIO, || unsafe { change_membership(qp, gid, true) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: passed on.
    guarded(libc::EIO, || unsafe { change_membership(qp, gid, false) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_rdma::attach;

    const PORT_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn gid(text: &str) -> ibv_gid {
        ibv_gid::from_bytes(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn a_mapped_gid_is_an_ipv4_address() {
        assert_eq!(ip_of(&gid_of(PORT_V4), PORT_V4), PORT_V4);
        let other = ip("fe80::1");
        assert_eq!(ip_of(&gid_of(other), PORT_V4), other);
    }

    #[test]
    fn a_group_is_the_same_in_either_form() {
        assert_eq!(ip_of(&gid("::ffff:224.1.2.3"), PORT_V4), ip("224.1.2.3"));
        assert_eq!(ip_of(&gid("ff0e::ffff:224.1.2.3"), PORT_V4), ip("224.1.2.3"));
    }

    #[test]
    fn a_group_of_another_kind_has_an_address_that_the_port_can_reach() {
        assert_eq!(ip_of(&gid("ff12:401b::a:b0c"), PORT_V4), ip("239.10.11.12"));
        assert_eq!(ip_of(&gid("ff0e::ffff:10.1.2.3"), PORT_V4), ip("239.1.2.3"));
        assert_eq!(ip_of(&gid("ff12:401b::a:b0c"), ip("fd00::1")), ip("ff12:401b::a:b0c"));
    }

    fn attach(addresses: &str) -> Attach {
        Attach::from_lookup(|name| match name {
            attach::ENV_SOCKET => Some("/nowhere".to_owned()),
            attach::ENV_IP => Some(addresses.to_owned()),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn the_source_gid_is_of_the_destinations_family() {
        let taken = |attach: &Attach, index: u8, to: &str| {
            let mut attr = ibv_ah_attr { is_global: 1, port_num: PORT, ..ibv_ah_attr::zeroed() };
            (attr.grh.dgid, attr.grh.sgid_index) = (gid_of(ip(to)), index);
            address_of(&attr, attach).map(|address| public_address(attach, &address))
        };
        let both = attach("10.77.0.2,fd77::a4d:2");
        for (index, to, other) in [(0, "10.77.0.1", "fd77::1"), (1, "fd77::1", "10.77.0.1")] {
            assert_eq!(taken(&both, index, to).unwrap().grh.sgid_index, index);
            assert_eq!(taken(&both, index, other).err(), Some(libc::EINVAL));
        }
        let one = attach("10.77.0.2");
        for index in [0, 1] {
            assert_eq!(taken(&one, index, "10.77.0.1").unwrap().grh.sgid_index, 0);
        }
        for attach in [both, one] {
            assert_eq!(taken(&attach, 2, "10.77.0.1").err(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn an_address_has_the_low_twenty_bits_of_its_flow_label() {
        let attach = attach(&PORT_V4.to_string());
        let mut attr = ibv_ah_attr { is_global: 1, port_num: PORT, ..ibv_ah_attr::zeroed() };
        attr.grh.dgid = gid_of(ip("10.77.0.1"));
        attr.grh.flow_label = !0x11;
        let address = address_of(&attr, &attach).unwrap();
        assert_eq!((address.flow_label, address.destination_ip), (0xf_ffee, ip("10.77.0.1")));
    }

    #[test]
    fn a_datagram_that_names_no_sender_has_no_address() {
        let mut wc: ibv_wc = ibv_wc::zeroed();
        let area = [0_u8; GRH_LEN];
        // SAFETY: 40 readable bytes.
        unsafe {
            let attach = attach(&PORT_V4.to_string());
            assert!(sender(&attach, &wc, area.as_ptr().cast()).is_none());
            wc.wc_flags = IBV_WC_GRH;
            assert!(sender(&attach, &wc, area.as_ptr().cast()).is_none());
            assert!(sender(&attach, &wc, ptr::null()).is_none());
        }
    }
}
