//! The few small programs that run in the kernel, written instruction by instruction.
//!
//! One takes every frame that comes into an interface to the socket of its queue (XDP). Another,
//! two instructions long, makes an interface deaf and dumb for this host's own network stack, so
//! that a bridge is not answered for by the host it runs on (TCX, Linux 6.6 and later). Both are
//! attached by a link that is a file descriptor: it goes with the process, whatever ends it.
//!
//! The kernel's side is described in bpf(2), linux/bpf.h and
//! Documentation/bpf/standardization/instruction-set.rst.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Commands of bpf(2).
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

/// `BPF_MAP_TYPE_XSKMAP`.
const SOCKET_MAP: u32 = 17;
/// `BPF_PROG_TYPE_SCHED_CLS` and `BPF_PROG_TYPE_XDP`.
const CLASSIFIER: u32 = 3;
const EXPRESS: u32 = 6;

/// Attachment points of programs: `BPF_XDP`, `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
const AT_EXPRESS: u32 = 37;
const AT_INGRESS: u32 = 46;
const AT_EGRESS: u32 = 47;

/// `TCX_DROP` and `XDP_PASS`.
const DROP: i32 = 2;
const PASS: i32 = 2;

/// Helpers of bpf-helpers(7).
const TIME_NS: i32 = 5;
const REDIRECT_MAP: i32 = 51;
const ADJUST_META: i32 = 54;

/// Size of the frame's arrival time by CLOCK_MONOTONIC in front of it, in bytes.
pub const STAMP_BYTES: usize = 8;

/// Mode of the XDP program: run by the driver, or by the kernel in its stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel processes a frame.
    Native,
    /// In the kernel, for drivers that cannot.
    Generic,
}

impl XdpMode {
    /// `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE`.
    const fn flag(self) -> u32 {
        match self {
            XdpMode::Native => 1 << 2,
            XdpMode::Generic => 1 << 1,
        }
    }
}

/// Direction of the frames that this host is kept out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterDirection {
    /// From the wire to the host.
    In,
    /// From the host to the wire.
    Out,
}

/// One instruction, `struct bpf_insn`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct BpfInstruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Instructions by what they do; `to` and `from` are registers.
mod assemble {
    use super::BpfInstruction;

    const fn instruction(
        code: u8,
        to: u8,
        from: u8,
        offset: i16,
        immediate: i32,
    ) -> BpfInstruction {
        BpfInstruction {
            code,
            registers: if cfg!(target_endian = "little") {
                to | from << 4
            } else {
                to << 4 | from
            },
            offset,
            immediate,
        }
    }

    /// `to = from`
    pub(super) const fn copy(to: u8, from: u8) -> BpfInstruction {
        instruction(0xbf, to, from, 0, 0)
    }

    /// `to = value`
    pub(super) const fn set(to: u8, value: i32) -> BpfInstruction {
        instruction(0xb7, to, 0, 0, value)
    }

    /// `to += value`
    pub(super) const fn add(to: u8, value: i32) -> BpfInstruction {
        instruction(0x07, to, 0, 0, value)
    }

    /// `to = *(u32 *)(from + offset)`
    pub(super) const fn load(to: u8, from: u8, offset: i16) -> BpfInstruction {
        instruction(0x61, to, from, offset, 0)
    }

    /// `*(u64 *)to = from`
    pub(super) const fn store(to: u8, from: u8) -> BpfInstruction {
        instruction(0x7b, to, from, 0, 0)
    }

    /// Skips `count` instructions if `left > right`.
    pub(super) const fn skip_if_above(left: u8, right: u8, count: i16) -> BpfInstruction {
        instruction(0x2d, left, right, count, 0)
    }

    /// Skips `count` instructions unless `register` is zero.
    pub(super) const fn skip_unless_zero(register: u8, count: i16) -> BpfInstruction {
        instruction(0x55, register, 0, count, 0)
    }

    /// `to = map`, which takes two instructions (`BPF_PSEUDO_MAP_FD`).
    pub(super) const fn map(to: u8, descriptor: i32) -> [BpfInstruction; 2] {
        [
            instruction(0x18, to, 1, 0, descriptor),
            instruction(0, 0, 0, 0, 0),
        ]
    }

    /// `r0 = helper(r1, r2, …)`
    pub(super) const fn call(helper: i32) -> BpfInstruction {
        instruction(0x85, 0, 0, 0, helper)
    }

    /// Returns r0.
    pub(super) const fn exit() -> BpfInstruction {
        instruction(0x95, 0, 0, 0, 0)
    }
}

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_META: i16 = 8;
const RECEIVE_QUEUE: i16 = 16;

/// Sends each frame to the socket of its queue, or on to the host if there is none.
fn redirect(map: RawFd) -> Vec<BpfInstruction> {
    use assemble::{call, exit, load, map as map_of, set};
    let [first, second] = map_of(1, map);
    vec![
        load(2, 1, RECEIVE_QUEUE),
        first,
        second,
        set(3, PASS),
        call(REDIRECT_MAP),
        exit(),
    ]
}

/// Program that also writes the arrival time in front of the frame, where the driver leaves room
/// for it.
fn stamp_and_redirect(map: RawFd) -> Vec<BpfInstruction> {
    use assemble::{add, call, copy, load, set, skip_if_above, skip_unless_zero, store};
    let mut program = vec![
        copy(6, 1),
        set(2, -(STAMP_BYTES as i32)),
        call(ADJUST_META),
        skip_unless_zero(0, 7),
        call(TIME_NS),
        load(1, 6, DATA_META),
        load(2, 6, DATA),
        copy(3, 1),
        add(3, STAMP_BYTES as i32),
        skip_if_above(3, 2, 1),
        store(1, 0),
        copy(1, 6),
    ];
    program.extend(redirect(map));
    program
}

/// Sockets by the receive queue they serve.
#[derive(Debug)]
pub struct SocketMap(OwnedFd);

impl SocketMap {
    /// Makes a map for `queues` queues.
    pub fn new(queues: u32) -> io::Result<Self> {
        /// Attributes of `union bpf_attr` that MAP_CREATE reads.
        #[repr(C)]
        struct MapCreateAttributes {
            kind: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries: u32,
            flags: u32,
        }
        let attributes = MapCreateAttributes {
            kind: SOCKET_MAP,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues,
            flags: 0,
        };
        new_descriptor(MAP_CREATE, &attributes).map(Self)
    }

    /// Lets a socket have the frames of a queue.
    pub fn insert(&self, queue: u32, socket: &impl AsRawFd) -> io::Result<()> {
        /// Attributes of `union bpf_attr` that MAP_UPDATE_ELEM reads.
        #[repr(C)]
        struct MapUpdateAttributes {
            map: u32,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let descriptor = socket.as_raw_fd();
        let attributes = MapUpdateAttributes {
            map: self.0.as_raw_fd() as u32,
            padding: 0,
            key: address_of(&queue),
            value: address_of(&descriptor),
            flags: 0,
        };
        call(MAP_UPDATE, &attributes).map(|_| ())
    }
}

/// Program attached to an interface's frames until it is dropped.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "holding the descriptor is what keeps the program attached"
)]
pub struct AttachedProgram(OwnedFd);

/// Redirects frames that arrive at an interface of the calling thread's namespace to the sockets of
/// `map`.
pub fn attach_redirect(map: &SocketMap, index: i32, mode: XdpMode) -> io::Result<AttachedProgram> {
    let map = map.0.as_raw_fd();
    // Linux before 5.8 keeps its clock for programs under the GPL.
    let program =
        load(EXPRESS, &stamp_and_redirect(map)).or_else(|_| load(EXPRESS, &redirect(map)))?;
    attach(&program, index, AT_EXPRESS, mode.flag())
}

/// Drops frames between this host's network stack and an interface of the calling thread's
/// namespace, in one direction. Packet sockets still receive incoming frames, and can send if they
/// bypass the queueing discipline.
pub fn attach_drop_filter(index: i32, way: FilterDirection) -> io::Result<AttachedProgram> {
    let program = load(CLASSIFIER, &[assemble::set(0, DROP), assemble::exit()])?;
    let at = match way {
        FilterDirection::In => AT_INGRESS,
        FilterDirection::Out => AT_EGRESS,
    };
    attach(&program, index, at, 0)
}

fn load(kind: u32, program: &[BpfInstruction]) -> io::Result<OwnedFd> {
    /// Attributes of `union bpf_attr` that PROG_LOAD reads.
    #[repr(C)]
    struct ProgramLoadAttributes {
        kind: u32,
        instructions: u32,
        program: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let license = c"Apache-2.0";
    let attributes = ProgramLoadAttributes {
        kind,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"trunkline_link\0\0",
    };
    new_descriptor(PROGRAM_LOAD, &attributes)
}

fn attach(program: &OwnedFd, index: i32, at: u32, flags: u32) -> io::Result<AttachedProgram> {
    /// Attributes of `union bpf_attr` that LINK_CREATE reads.
    #[repr(C)]
    struct LinkCreateAttributes {
        program: u32,
        index: i32,
        at: u32,
        flags: u32,
        relative: u32,
        padding: u32,
        revision: u64,
    }
    let attributes = LinkCreateAttributes {
        program: program.as_raw_fd() as u32,
        index,
        at,
        flags,
        relative: 0,
        padding: 0,
        revision: 0,
    };
    new_descriptor(LINK_CREATE, &attributes).map(AttachedProgram)
}

fn address_of<T>(value: &T) -> u64 {
    ptr::from_ref(value) as u64
}

fn new_descriptor<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    let descriptor = call(command, attributes)?;
    // SAFETY: the commands this is used for return a new descriptor, which is ours alone; the
    // kernel sets close-on-exec on it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// bpf(2). The kernel takes what a shorter structure lacks as zero.
fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the structure, and what its addresses point at, live through the call; its size is
    // told, and the kernel writes into none of the structures used here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(attributes),
            mem::size_of::<T>() as libc::c_long,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as RawFd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_eight_bytes() {
        assert_eq!(mem::size_of::<BpfInstruction>(), 8);
    }

    #[test]
    fn stamping_program_jumps_end_before_redirect() {
        let program = stamp_and_redirect(0);
        let restore = program.len() - redirect(0).len() - 1;
        for (at, instruction) in program.iter().enumerate() {
            if instruction.offset > 0 && matches!(instruction.code, 0x2d | 0x55) {
                let end = at + 1 + instruction.offset as usize;
                assert_eq!(end, restore, "the jump at {at}");
            }
        }
    }
}
