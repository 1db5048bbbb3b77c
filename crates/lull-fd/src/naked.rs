//! Functions of the C library that Rust cannot define, because they have any number of arguments (`execl`, `dprintf`)
//! or return twice (`vfork`).

/// Declares variadic functions. The arguments that came in registers are put in front of those on the stack, which
/// makes an array of all of them. The bodies get the first argument and the array.
#[macro_export]
macro_rules! variadic {
    ($($name:ident => $body:ident;)*) => {
        $(
            /// As the C library's function.
            ///
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                ::core::arch::naked_asm!(
                    "pop r10", "push r9", "push r8", "push rcx", "push rdx", "push rsi", "mov rsi, rsp",
                    "push r10", "call {body}", "pop r10", "add rsp, 40", "push r10", "ret",
                    body = sym $body
                );
                #[cfg(target_arch = "aarch64")]
                ::core::arch::naked_asm!(
                    "sub sp, sp, #80", "stp x29, x30, [sp]", "stp x1, x2, [sp, #24]", "stp x3, x4, [sp, #40]",
                    "stp x5, x6, [sp, #56]", "str x7, [sp, #72]", "add x1, sp, #24", "bl {body}",
                    "ldp x29, x30, [sp]", "add sp, sp, #80", "ret",
                    body = sym $body
                );
            }
        )*
    };
}

/// Declares functions that jump to an address, with their arguments and their return address unchanged. The address is
/// what the function after `where` returns, which gets the first argument.
#[macro_export]
macro_rules! goes_on {
    ($($(#[$doc:meta])* fn $name:ident, where $which:path;)*) => {
        $(
            /// As the C library's function.
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                ::core::arch::naked_asm!(
                    "push rbp", "mov rbp, rsp", "sub rsp, 192",
                    "mov [rsp], rdi", "mov [rsp + 8], rsi", "mov [rsp + 16], rdx", "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8", "mov [rsp + 40], r9", "mov [rsp + 48], rax",
                    "movaps [rsp + 64], xmm0", "movaps [rsp + 80], xmm1", "movaps [rsp + 96], xmm2",
                    "movaps [rsp + 112], xmm3", "movaps [rsp + 128], xmm4", "movaps [rsp + 144], xmm5",
                    "movaps [rsp + 160], xmm6", "movaps [rsp + 176], xmm7",
                    "call {which}", "mov r11, rax",
                    "mov rdi, [rsp]", "mov rsi, [rsp + 8]", "mov rdx, [rsp + 16]", "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]", "mov r9, [rsp + 40]", "mov rax, [rsp + 48]",
                    "movaps xmm0, [rsp + 64]", "movaps xmm1, [rsp + 80]", "movaps xmm2, [rsp + 96]",
                    "movaps xmm3, [rsp + 112]", "movaps xmm4, [rsp + 128]", "movaps xmm5, [rsp + 144]",
                    "movaps xmm6, [rsp + 160]", "movaps xmm7, [rsp + 176]",
                    "leave", "jmp r11",
                    which = sym $which
                );
                #[cfg(target_arch = "aarch64")]
                ::core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-208]!", "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]", "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]",
                    "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                    "bl {which}", "mov x16, x0",
                    "ldp q6, q7, [sp, #176]", "ldp q4, q5, [sp, #144]", "ldp q2, q3, [sp, #112]", "ldp q0, q1, [sp, #80]",
                    "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]", "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                    "ldp x29, x30, [sp], #208", "br x16",
                    which = sym $which
                );
            }
        )*
    };
}
