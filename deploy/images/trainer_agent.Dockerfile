# The image of trainer_agent. The context is a directory of deploy/bundle with certificates.pem, the CAs to trust:
#
#   docker build -f deploy/images/trainer_agent.Dockerfile --build-arg VERSION=$(cat VERSION) CONTEXT
#
# No shell is in it, and the root file system may be read-only. Volumes, writable for the user: /run/trainer-agent for
# sockets, and a memory volume for segment_dir.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="lockstep-trainer-agent"
LABEL org.opencontainers.image.description="Serves each version of a trainer's weights to inference receivers"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version=$VERSION
COPY lib /lib/
COPY loader/trainer_agent /lib64/ld-linux-x86-64.so.2
COPY licenses /usr/share/doc/lockstep/
COPY certificates.pem /etc/ssl/certs/ca-certificates.crt
COPY program/trainer_agent program/lockstepctl /usr/bin/
ENV PATH=/usr/bin
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["lockstepctl", "--agent", "unix:/run/trainer-agent/control.sock", "--quiet", "health", "liveness"]
ENTRYPOINT ["trainer_agent"]
