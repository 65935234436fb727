//! An attachment that moves to another process.
//!
//! The rings and the buffers stay where they are: the other process maps them too, and finds the
//! rings' indices in them. What only this process knows are the buffers with the kernel for
//! sending, and received parts that were not handed out yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use longhaul_port::Handover;

use crate::attachment::{Attachment, map};
use crate::config::XdpConfig;
use crate::error::XdpError;
use crate::installed::Share;
use crate::memory::Buffers;
use crate::queue::Queue;
use crate::ring::{Consuming, Descriptor, Producing, Violation};
use crate::sender::Sender;
use crate::socket::{Ring, XdpSocket};

/// What a handover is on a kernel that does not map the rings of a bound socket again.
const FIXED_RINGS: &str = "AF_XDP sockets in use, which another process can continue from Linux \
                           6.4 on: drain and restart it";

/// Numbers, one after the other; each list begins with its length.
struct Numbers(std::vec::IntoIter<u64>);

impl Numbers {
    fn next(&mut self) -> Result<u64, Violation> {
        self.0.next().ok_or_else(|| Violation("too few numbers".to_owned()))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Violation> {
        let number = self.next()?;
        T::try_from(number).map_err(|_| Violation(format!("number {number}")))
    }

    fn list(&mut self, each: usize) -> Result<Vec<u64>, Violation> {
        let len = self.small::<u16>()?;
        (0..usize::from(len) * each).map(|_| self.next()).collect()
    }
}

/// Duplicates what another process needs to [continue](take_over) `attachment`.
///
/// # Errors
/// If the process is out of descriptors.
pub(crate) fn hand_over(attachment: &mut Attachment) -> io::Result<Handover> {
    let Attachment { installed, manner, queues, sender, buffers, .. } = attachment;
    queues.iter_mut().for_each(Queue::publish);
    let program = installed.hand_over()?;
    let sockets = queues.iter().map(|queue| queue.socket.as_fd());
    let descriptors = std::iter::once(buffers.as_fd())
        .chain(sockets)
        .map(|fd| fd.try_clone_to_owned())
        .chain(program.descriptors.into_iter().map(Ok))
        .collect::<io::Result<_>>()?;
    let lent: Vec<u64> = sender.lent().collect();
    let mut numbers = vec![manner.queues.into(), queues.len() as u64, lent.len() as u64];
    numbers.extend(lent);
    for queue in queues {
        numbers.push(queue.came().len() as u64);
        numbers.extend(
            queue.came().flat_map(|part| [part.address, part.len.into(), part.goes_on.into()]),
        );
    }
    numbers.push(buffers.bytes() as u64);
    numbers.extend(program.numbers);
    Ok(Handover { descriptors, numbers })
}

/// Continues an attachment that another process with the same configuration handed over.
///
/// # Errors
/// [`XdpError::NotThisPort`].
pub(crate) fn take_over(
    config: &XdpConfig,
    index: Option<u32>,
    share: &Share,
    handover: Handover,
) -> Result<Attachment, XdpError> {
    let other = |what| XdpError::NotThisPort { interface: config.interface.clone(), what };
    let attachment = taken_over(config, share, handover).map_err(|error| other(error.0))?;
    if index != Some(attachment.installed.index()) {
        let what = "sockets of another interface, or of another network namespace";
        return Err(other(what.to_owned()));
    }
    Ok(attachment)
}

fn taken_over(
    config: &XdpConfig,
    share: &Share,
    handover: Handover,
) -> Result<Attachment, Violation> {
    let told = |error: io::Error| Violation(error.to_string());
    let mut numbers = Numbers(handover.numbers.into_iter());
    let mut descriptors = handover.descriptors.into_iter();
    let (of_all, count): (u16, u16) = (numbers.small()?, numbers.small()?);
    if !(1..=XdpConfig::QUEUES_MAX).contains(&count) || of_all < count {
        return Err(Violation(format!("{count} queues of {of_all}")));
    }
    let frames = config.frames_of_each(of_all);
    let lent = numbers.list(1)?;
    let came: Vec<Vec<u64>> = (0..count).map(|_| numbers.list(3)).collect::<Result<_, _>>()?;
    let bytes: usize = numbers.small()?;
    let buffers = config.transmit_frames + u32::from(count) * frames;
    // With other sizes, indices would mean other entries.
    if bytes != buffers as usize * Buffers::EACH {
        return Err(Violation("rings of other sizes".to_owned()));
    }
    let mut next = || descriptors.next().ok_or_else(|| Violation("too few sockets".to_owned()));
    let buffers = Buffers::map(next()?, buffers).map_err(told)?;
    let no_socket = || Violation("no AF_XDP socket".to_owned());
    let sockets: Vec<XdpSocket> = (0..count)
        .map(|_| XdpSocket::adopt(next()?).ok_or_else(no_socket))
        .collect::<Result<_, _>>()?;
    let unmapped = |error: io::Error| match error.kind() {
        io::ErrorKind::ResourceBusy => Violation(FIXED_RINGS.to_owned()),
        _ => told(error),
    };
    let ring = |socket: &XdpSocket, ring, entries| map(socket, ring, entries).map_err(unmapped);
    let sender = {
        let first = sockets.first().ok_or_else(no_socket)?;
        let transmit = ring(first, Ring::Transmit, config.transmit_frames)?;
        let completion = ring(first, Ring::Completion, config.transmit_frames)?;
        let (transmit, completion) = (Producing::resume(transmit), Consuming::resume(completion));
        Sender::resume(transmit, completion, config.transmit_frames, lent.into_iter())?
    };
    let mut queues = Vec::with_capacity(sockets.len());
    for ((at, socket), came) in (0..).zip(sockets).zip(came) {
        let rings = [ring(&socket, Ring::Receive, frames)?, ring(&socket, Ring::Fill, frames)?];
        let part = |part: &[u64; 3]| Descriptor {
            address: part[0],
            // What does not fit is in no buffer.
            len: part[1].try_into().unwrap_or(u32::MAX),
            goes_on: part[2] != 0,
        };
        let came = came.as_chunks().0.iter().map(part);
        let first = config.transmit_frames + at * frames;
        queues.push(Queue::resume(socket, rings, [first, frames], came)?);
    }
    let program = Handover {
        descriptors: descriptors.collect::<Vec<OwnedFd>>(),
        numbers: numbers.0.collect(),
    };
    let installed = share.taken_over(program);
    let installed = installed.ok_or_else(|| Violation("no XDP program".to_owned()))?;
    Attachment::with(installed, of_all, queues, sender, buffers).map_err(told)
}
